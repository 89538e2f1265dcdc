// The stream of ansible-runner: finds its lines, each with its place, wherever bytes are cut, and leaves zips out. It
// knows neither where bytes come from nor what a line is for.

// Longer lines are left out.
const LONGEST_LINE = 4 << 20;
const NEWLINE = 10;
// What a zip in base64 has, and blanks between.
const LETTERS = new Set(new TextEncoder().encode("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="));
const BLANKS = new Set(new TextEncoder().encode(" \t\n\f\r"));

export class RunnerStream {
  // Where the bytes of the next push begin in the stream, and where the line begins that is being read.
  #at;
  #begin;
  #decoder = new TextDecoder();
  #text = "";
  #length = 0;
  #zip = 0;
  #isWithin;

  // Bytes come from this place on. If that may be within a line, its rest is left out.
  constructor(at = 0, isWithin = at > 0) {
    [this.#at, this.#begin, this.#isWithin] = [at, at, isWithin];
  }

  // What more bytes bring: each line as its place, and what it is: an object, or the words of a runner that has failed.
  push(bytes) {
    const lines = [];
    for (let at = 0; at < bytes.length;) {
      if (this.#zip > 0) {
        at = this.#skip(bytes, at);
        this.#begin = this.#at + at;
        continue;
      }
      const end = bytes.indexOf(NEWLINE, at);
      this.#keep(bytes.subarray(at, end < 0 ? bytes.length : end));
      if (end < 0) break;
      const line = this.#line();
      const isZip = typeof line.status !== "string" && Number.isSafeInteger(line.zipfile) && line.zipfile > 0;
      if (isZip) this.#zip = Math.ceil(line.zipfile / 3) * 4;
      else if (line !== "") lines.push([this.#begin, line]);
      at = end + 1;
      this.#begin = this.#at + at;
    }
    this.#at += bytes.length;
    return lines;
  }

  // Behind the part of a zip that begins here. What is no base64 ends it: an invented length hides nothing else.
  #skip(bytes, at) {
    for (; this.#zip > 0 && at < bytes.length; at++) {
      if (LETTERS.has(bytes[at])) this.#zip -= 1;
      else if (!BLANKS.has(bytes[at])) [this.#zip, at] = [0, at - 1];
    }
    return at;
  }

  #keep(part) {
    this.#length += part.length;
    this.#text = this.#length > LONGEST_LINE ? "" : this.#text + this.#decoder.decode(part, { stream: true });
  }

  #line() {
    const [rest, isCut] = [this.#decoder.decode(), this.#isWithin || this.#length > LONGEST_LINE];
    const line = isCut ? "" : this.#text + rest;
    [this.#text, this.#length, this.#isWithin] = ["", 0, false];
    try {
      const value = JSON.parse(line);
      return value instanceof Object ? value : line;
    } catch {
      return line;
    }
  }
}
