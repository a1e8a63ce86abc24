// @ts-check
// Reads Server-Sent Events from pieces of text, by the rules of the HTML standard.
//
// A comment line (a heartbeat) gives no event.

const MAX_CHARACTERS = 64 * 1024 * 1024;
const LONGEST_SILENCE_MS = 45_000; // three heartbeats

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

/**
 * Reads a stream to its end, and hands on the events that came together, or none with a heartbeat. Returns why it
 * ended: what `take` says, if it says something.
 * @param {ReadableStream<any>} body
 * @param {AbortController} cut ends the request
 * @param {(events: {type: string, id: string, data: string}[]) => string | undefined | Promise<string | undefined>} take
 */
export async function readStream(body, cut, take) {
  const reader = new SseReader();
  const chunks = body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const silence = setTimeout(() => cut.abort(), LONGEST_SILENCE_MS);
    const { done, value } = await chunks.read().finally(() => clearTimeout(silence));
    if (done) return "The connection was closed.";
    const why = await take(reader.push(value));
    if (why === undefined) continue;
    cut.abort();
    return why;
  }
}
