// What a job prints: finds the playbook's text in the runner's stream, and shows it in a box that it cannot leave.
// Colours become classes, everything else that could command a screen is shown as a replacement character. The box
// keeps the end of a long text, and leads from one failure in it to the next. It does not know where bytes come from.

import { count, el, fill } from "./dom.js";
import { RunnerStream } from "./runner.js";

// What the box keeps: lines, and letters, where a change of colour counts as several.
const MOST_LINES = 5_000;
const MOST_LETTERS = 1 << 20;
const LONGEST_SHOWN = 4_096;
const SPAN = 32;
// Empty lines that the runner cuts off the end of an event.
const EMPTY_LINES = 2;
// How ansible prints a failure, and what it prints below one that does not count.
const FAILURE = /^(?:fatal|failed): \[|: (?:FAILED|UNREACHABLE)! =>|^ERROR! /;
const IGNORED = "...ignoring";
const COLOURS = /\x1b\[([0-9;:]{0,60})m/;

// The runner's stream as text. Bytes may be cut anywhere.
export class Playbook {
  #stream;
  #ended = null;

  // Bytes come from this place on.
  constructor(at = 0) {
    this.#stream = new RunnerStream(at);
  }

  // What more bytes bring: texts, each with the place in the stream where its line begins.
  push(bytes) {
    const texts = this.#stream.push(bytes).map(([at, line]) => [at, this.#text(line)]);
    return texts.filter(([, text]) => text !== "");
  }

  #text(line) {
    // The runner itself has failed, and says so in words.
    if (typeof line === "string") return `${line}\n`;
    if (typeof line.status === "string") {
      const again = line.status === "starting" && this.#ended !== null ? `\n(${this.#ended}: it starts again)\n` : "";
      this.#ended = line.status === "starting" ? null : (line.job_explanation ?? this.#ended);
      return again;
    }
    if (line.event === "keepalive" || typeof line.stdout !== "string") return "";
    const text = line.stdout === "" ? "" : `${line.stdout}\n`;
    const missing = (line.end_line || 0) - (line.start_line || 0) - text.split("\n").length + 1;
    return text + "\n".repeat(Math.min(Math.max(missing, 0), EMPTY_LINES));
  }
}

// A box of text. `where` is the address of the whole.
export class Screen {
  #lines = [];
  #letters = 0;
  #dropped = 0;
  #made = 0;
  #colour = "";
  #isBold = false;
  #here = null;
  #said = "";
  #playbook = null;

  constructor(where) {
    this.box = el("pre", { class: "screen", role: "region", tabindex: 0, "aria-label": "Output" });
    this.note = el("p", { class: "note" });
    this.tail = el("input", { type: "checkbox", checked: true });
    this.where = where;
    this.count = el("output");
    const [before, after] = [["Previous error", -1], ["Next error", 1]].map(([words, way]) =>
      el("button", { type: "button", onclick: () => this.step(way) }, words));
    this.errors = el("span", { class: "actions", hidden: true }, before, after, this.count);
    const tail = el("label", { class: "check" }, this.tail, "Keep the end in sight");
    const tools = el("div", { class: "actions" }, tail, this.errors);
    this.element = el("div", { class: "printed" }, tools, this.box, this.note);
    const isAtEnd = () => this.box.scrollTop + this.box.clientHeight >= this.box.scrollHeight - 4;
    this.box.addEventListener("scroll", () => { this.tail.checked = isAtEnd(); });
    // What is below the box takes room from it later than its end was shown.
    new ResizeObserver(() => this.#showEnd()).observe(this.box);
    this.say();
  }

  // What is to say below it.
  say(text = this.#said) {
    this.#said = text;
    const dropped = this.#dropped > 0 && `The first ${this.#dropped} lines are not shown here. `;
    const whole = el("a", { href: this.where, download: "output" }, "The whole, as the runner wrote it");
    fill(this.note, text, " ", dropped, whole);
  }

  // Bytes of the stream come from this place on.
  begin(at) {
    this.#playbook = new Playbook(at);
  }

  // Shows more bytes of the stream.
  push(bytes) {
    const lines = this.#playbook.push(bytes).flatMap(([at, text]) =>
      text.replace(/\n$/, "").split("\n").map(line => [at, line]));
    const dropped = this.#dropped;
    const surplus = Math.max(lines.length - MOST_LINES, 0);
    this.#dropped += surplus;
    // Colours last beyond a line, so those that are dropped are read all the same.
    for (const [, line] of lines.slice(0, surplus)) this.#parts(line);
    this.box.append(...lines.slice(surplus).map(([at, line]) => this.#make(at, line)));
    while (this.#lines.length > MOST_LINES || this.#letters > MOST_LETTERS) {
      const { element, letters } = this.#lines.shift();
      element.remove();
      this.#letters -= letters;
      this.#dropped += 1;
    }
    if (this.#dropped !== dropped) this.say();
    this.#countErrors();
    this.#showEnd();
  }

  #showEnd() {
    if (this.tail.checked) this.box.scrollTop = this.box.scrollHeight;
  }

  #failures() {
    return this.#lines.filter(line => line.isFailure);
  }

  #countErrors() {
    const all = this.#failures();
    this.errors.hidden = all.length === 0;
    const at = all.indexOf(this.#here) + 1;
    fill(this.count, at > 0 ? `${at} of ${count(all.length, "error")}` : count(all.length, "error"));
  }

  // Goes to the next failure (way 1) or the previous one (way -1), and from the last to the first. Returns false if
  // there is none.
  step(way) {
    const [all, from] = [this.#failures(), this.#here?.number];
    const next = way > 0 ? all.find(one => one.number > (from ?? -1)) ?? all[0]
      : all.findLast(one => one.number < (from ?? Infinity)) ?? all.at(-1);
    if (next) this.#go(next);
    return next !== undefined;
  }

  // Goes to what stands at a place of the stream. Says whether it is here.
  reach(place) {
    const at = this.#lines.findLast(line => line.at <= place)?.at;
    const found = this.#lines.filter(line => line.at === at);
    if (found.length > 0) this.#go(found.find(line => line.isFailure) ?? found[0]);
    return found.length > 0;
  }

  // Shows a line in the upper part of the box, so that what follows is to be read.
  #go(line) {
    this.#here?.element.classList.remove("here");
    this.#here = line;
    line.element.classList.add("here");
    this.tail.checked = false;
    const [top, edge] = [line.element, this.box].map(one => one.getBoundingClientRect().top);
    this.box.scrollTop += top - edge - this.box.clientHeight / 4;
    this.#countErrors();
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

  #make(at, text) {
    const parts = this.#parts(text);
    const plain = parts.map(([, part]) => part).join("");
    if (plain === IGNORED && this.#lines.length > 0) this.#lines.at(-1).isFailure = false;
    const element = el("span", { class: "line" },
      parts.map(([style, part]) => (style === "" ? part : el("span", { class: style }, part))), "\n");
    const letters = parts.reduce((sum, [, part]) => sum + part.length + SPAN, SPAN);
    this.#lines.push({ element, letters, at, number: this.#made, isFailure: FAILURE.test(plain) });
    this.#made += 1;
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
      else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) this.#colour = `c${code % 10}`;
      else if (code === 39) this.#colour = "";
      else if (code === 38 || code === 48) {
        if (code === 38) this.#colour = numbers[at + 1] === 5 && numbers[at + 2] < 16 ? `c${numbers[at + 2] % 8}` : "";
        at += numbers[at + 1] === 5 ? 2 : 4;
      }
    }
  }
}
