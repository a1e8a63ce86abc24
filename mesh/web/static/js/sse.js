// Server-Sent Events from pieces of text, as the HTML standard reads them. Pure.
//
// `push(text)` gives the events that are complete: {type, id, data}. A comment line (a heartbeat) gives none.

const MOST_CHARACTERS = 64 * 1024 * 1024;

export class SseReader {
  #rest = "";
  #event = { type: "", id: "", data: [] };

  push(text) {
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop();
    if (this.#rest.length > MOST_CHARACTERS) throw new Error("an event of the stream is too large");
    return lines.flatMap((line) => this.#line(line));
  }

  #line(line) {
    if (line === "") return this.#complete();
    const [, name, value] = /^([^:]*):? ?([\s\S]*)$/.exec(line);
    if (name === "event") this.#event.type = value;
    else if (name === "id") this.#event.id = value;
    else if (name === "data") this.#event.data.push(value);
    return [];
  }

  #complete() {
    const { type, id, data } = this.#event;
    this.#event = { type: "", id: "", data: [] };
    return data.length ? [{ type, id, data: data.join("\n") }] : [];
  }
}
