// What a job prints: finds the playbook's text in the runner's stream, and shows it in a box that it cannot leave.
// Colours become classes, everything else that could command a screen is shown as a replacement character. The box
// keeps the end of a long text. It does not know where bytes come from.

import { el, fill } from "./dom.js";

// Longer lines of the stream are left out.
const LONGEST_LINE = 4 << 20;
// What the box keeps: lines, and letters, where a change of colour counts as several.
const MOST_LINES = 5_000;
const MOST_LETTERS = 1 << 20;
const LONGEST_SHOWN = 4_096;
const SPAN = 32;
// Empty lines that the runner cuts off the end of an event.
const EMPTY_LINES = 2;
const COLOURS = /\x1b\[([0-9;:]{0,60})m/;
const NEWLINE = 10;
// What a zip in base64 has, and blanks between.
const LETTERS = new Set(new TextEncoder().encode("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="));
const BLANKS = new Set(new TextEncoder().encode(" \t\n\f\r"));

// The runner's stream as text. Bytes may be cut anywhere.
export class Playbook {
  #decoder = new TextDecoder();
  #text = "";
  #length = 0;
  #zip = 0;
  #ended = null;
  #isWithin;

  // It may begin within a line, which is left out then.
  constructor(isWithin = false) {
    this.#isWithin = isWithin;
  }

  // The text that more bytes bring.
  push(bytes) {
    let text = "";
    for (let at = 0; at < bytes.length;) {
      if (this.#zip > 0) {
        at = this.#skip(bytes, at);
        continue;
      }
      const end = bytes.indexOf(NEWLINE, at);
      this.#keep(bytes.subarray(at, end < 0 ? bytes.length : end));
      if (end < 0) break;
      text += this.#line();
      at = end + 1;
    }
    return text;
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
      return this.#event(JSON.parse(line));
    } catch {
      // The runner itself has failed, and says so in words.
      return line === "" ? "" : `${line}\n`;
    }
  }

  #event(event) {
    if (typeof event.status === "string") {
      const again = event.status === "starting" && this.#ended !== null ? `\n(${this.#ended}: it starts again)\n` : "";
      this.#ended = event.status === "starting" ? null : (event.job_explanation ?? this.#ended);
      return again;
    }
    if (Number.isSafeInteger(event.zipfile) && event.zipfile > 0) {
      this.#zip = Math.ceil(event.zipfile / 3) * 4;
      return "";
    }
    if (event.event === "keepalive" || typeof event.stdout !== "string") return "";
    const text = event.stdout === "" ? "" : `${event.stdout}\n`;
    const missing = (event.end_line || 0) - (event.start_line || 0) - text.split("\n").length + 1;
    return text + "\n".repeat(Math.min(Math.max(missing, 0), EMPTY_LINES));
  }
}

// A box of text. `where` is the address of the whole.
export class Screen {
  #lines = [];
  #letters = 0;
  #dropped = 0;
  #colour = "";
  #isBold = false;
  #open = "";
  #said = "";

  constructor(where) {
    this.box = el("pre", { class: "screen", role: "region", tabindex: 0, "aria-label": "Output" });
    this.note = el("p", { class: "note" });
    this.tail = el("input", { type: "checkbox", checked: true });
    this.where = where;
    const tail = el("label", { class: "check" }, this.tail, "Keep the end in sight");
    this.element = el("div", {}, tail, this.box, this.note);
    const isAtEnd = () => this.box.scrollTop + this.box.clientHeight >= this.box.scrollHeight - 4;
    this.box.addEventListener("scroll", () => { this.tail.checked = isAtEnd(); });
    this.say();
  }

  // What is to say below it.
  say(text = this.#said) {
    this.#said = text;
    const dropped = this.#dropped > 0 && `The first ${this.#dropped} lines are not shown here. `;
    const whole = el("a", { href: this.where, download: "output" }, "The whole, as the runner wrote it");
    fill(this.note, text, " ", dropped, whole);
  }

  push(text) {
    const lines = (this.#open + text).split("\n");
    this.#open = lines.pop().slice(0, LONGEST_SHOWN);
    const dropped = this.#dropped;
    const surplus = Math.max(lines.length - MOST_LINES, 0);
    this.#dropped += surplus;
    // Colours last beyond a line, so those that are dropped are read all the same.
    for (const line of lines.slice(0, surplus)) this.#parts(line);
    const made = lines.slice(surplus).map(line => this.#make(line));
    this.box.append(...made);
    while (this.#lines.length > MOST_LINES || this.#letters > MOST_LETTERS) {
      const { element, letters } = this.#lines.shift();
      element.remove();
      this.#letters -= letters;
      this.#dropped += 1;
    }
    if (this.#dropped !== dropped) this.say();
    if (this.tail.checked) this.box.scrollTop = this.box.scrollHeight;
  }

  // A line as [class, text]; the colours at its end are those of the next one.
  #parts(line) {
    const parts = [];
    const pieces = line.slice(0, LONGEST_SHOWN).replace(/\r$/, "").split(COLOURS);
    pieces.forEach((piece, at) => {
      if (at % 2 === 1) this.#set(piece);
      else if (piece !== "") parts.push([`${this.#colour}${this.#isBold ? " bold" : ""}`, piece]);
    });
    if (line.length > LONGEST_SHOWN) parts.push(["", ` … ${line.length - LONGEST_SHOWN} more letters`]);
    return parts;
  }

  #make(line) {
    const parts = this.#parts(line);
    const element = el("span", { class: "line" },
      parts.map(([style, text]) => (style === "" ? text : el("span", { class: style }, text))), "\n");
    const letters = parts.reduce((sum, [, text]) => sum + text.length + SPAN, SPAN);
    this.#lines.push({ element, letters });
    this.#letters += letters;
    return element;
  }

  // One of the palette of eight, or none: a text cannot choose its background, so it stays readable.
  #set(codes) {
    const numbers = codes.split(/[;:]/).map(Number);
    for (let at = 0; at < numbers.length; at += 1) {
      const code = numbers[at];
      if (code === 0) [this.#colour, this.#isBold] = ["", false];
      else if (code === 1 || code === 22) this.#isBold = code === 1;
      else if (code >= 30 && code <= 37) this.#colour = `c${code - 30}`;
      else if (code >= 90 && code <= 97) this.#colour = `c${code - 90}`;
      else if (code === 39) this.#colour = "";
      else if (code === 38 || code === 48) {
        if (code === 38) this.#colour = numbers[at + 1] === 5 && numbers[at + 2] < 16 ? `c${numbers[at + 2] % 8}` : "";
        at += numbers[at + 1] === 5 ? 2 : 4;
      }
    }
  }

  // What is left at the end of the stream.
  finish() {
    if (this.#open !== "") this.push("\n");
  }
}

