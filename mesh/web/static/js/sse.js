// @ts-check
// Reads Server-Sent Events from pieces of text, by the rules of the HTML standard. Pure.
//
// A comment line (a heartbeat) gives no event.

const MAX_CHARACTERS = 64 * 1024 * 1024;

/** @returns {{type: string, id: string, data: string[]}} */
const noEvent = () => ({ type: "", id: "", data: [] });

export class SseReader {
  #rest = "";
  #event = noEvent();

  /**
   * The events that are complete with this piece.
   * @param {string} text
   */
  push(text) {
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop() ?? "";
    if (this.#rest.length > MAX_CHARACTERS) throw new Error("an event of the stream is too large");
    return lines.flatMap((line) => this.#line(line));
  }

  /** @param {string} line */
  #line(line) {
    if (line === "") return this.#complete();
    const [, name = "", value = ""] = /^([^:]*):? ?([\s\S]*)$/.exec(line) ?? [];
    if (name === "event") this.#event.type = value;
    else if (name === "id") this.#event.id = value;
    else if (name === "data") this.#event.data.push(value);
    return [];
  }

  #complete() {
    const { type, id, data } = this.#event;
    this.#event = noEvent();
    return data.length ? [{ type, id, data: data.join("\n") }] : [];
  }
}
