// Follows the output of a job, across losses of the connection: each byte is read once. It knows where bytes come from,
// and nothing of what is made of them: that has `push` with bytes, `say` with words, maybe `begin`.

import { stream } from "./api.js";
import { size as bytesOf } from "./dom.js";

export class Output {
  #at = 0;
  #begun = false;
  #reading = null;
  #isOver = false;
  #note = "";

  // Reads the last bytes of what is there, so many; or, from the beginning on, the first ones and those that follow.
  constructor(id, reader, { last = Infinity, first = Infinity }) {
    this.path = `jobs/${id}/output`;
    this.reader = reader;
    [this.last, this.first] = [last, first];
  }

  // Goes on where it stopped, unless it is being read. After the end of its job it does so until it has all of it.
  // Says whether that is so since now.
  async follow(job, hasEnded) {
    if (this.#reading || this.#isOver || document.hidden) return false;
    if (job.state === "pending" && job.output_bytes === 0) return false;
    const reading = new AbortController();
    this.#reading = reading;
    if (!this.#begun) this.#begin(job.output_bytes);
    try {
      const answer = await stream(this.path, { from: this.#at, follow: !hasEnded }, reading.signal);
      for (const reader = answer.body.getReader(); this.#at < this.first;) {
        const { done, value } = await reader.read();
        if (this.#reading !== reading) return false;
        if (done) break;
        this.#at += value.length;
        this.reader.push(value);
      }
      const isTooLong = this.#at >= this.first;
      if (isTooLong) this.#note = `Only the first ${bytesOf(this.#at)} were read. `;
      this.#isOver = isTooLong || (hasEnded && this.#at >= job.output_bytes);
      const missing = answer.headers.get("X-Output-Missing");
      this.reader.say(this.#note + (missing ?? (this.#isOver && !isTooLong ? "This is all." : "")));
    } catch (error) {
      if (error.name === "AbortError") return false;
      this.#isOver = error.code === "not_found";
      this.reader.say(error.code ? error.message : "The connection was lost.");
    } finally {
      reading.abort();
      if (this.#reading === reading) this.#reading = null;
    }
    return this.#isOver;
  }

  #begin(size) {
    this.#begun = true;
    this.#at = Math.max(size - this.last, 0);
    this.#note = this.#at > 0 ? `Of ${bytesOf(size)} only the last ${bytesOf(this.last)} were read. ` : "";
    this.reader.begin?.(this.#at);
    this.reader.say(this.#note);
  }

  // It may go on at once, though what was asked for still arrives.
  stop() {
    this.#reading?.abort();
    this.#reading = null;
  }
}
