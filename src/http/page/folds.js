// What a playbook did, as folds: a line for each task, which opens to its hosts, each of which opens to its result. The
// results are with the node; here is only where each of them stands. And hosts as a bar, by what became of them.

import { stream } from "./api.js";
import { count, el, fill, named, refill, state, svg } from "./dom.js";
import { RunnerStream } from "./runner.js";
import { MOST_TASKS, STATES, Tasks, text } from "./tasks.js";

const MOST_HOSTS = 500;
// Letters of a result.
const LONGEST = 64 << 10;
// Milliseconds between two drawings of what comes in many pieces.
const PAUSE = 300;
const RANKS = Object.keys(STATES);

// Of hosts of which no more is known.
const KINDS = { ...STATES, "ok or changed": "ok" };

const present = counts => Object.keys(KINDS).filter(word => counts[word] > 0);
const sums = counts => present(counts).map(word => [" ", state(`${counts[word]} ${word}`, KINDS[word])]);

// Hosts by their states, worst first: as a bar, and as words, which alone say it to those who see no colours.
export function hostsBar(counts) {
  const words = present(counts);
  const all = words.reduce((sum, word) => sum + counts[word], 0);
  if (all === 0) return [];
  let at = 0;
  const parts = words.map(word => {
    const [x, width] = [at, (counts[word] / all) * 100];
    at += width;
    return svg("rect", { class: `hosts-${word.split(" ")[0]}`, x: `${x}%`, width: `${width}%`, height: "100%" });
  });
  return [svg("svg", { class: "bar", "aria-hidden": "true" }, parts),
    el("span", { class: "counts" }, `${count(all, "host")}:`, sums(counts))];
}

export class Folds {
  #tasks = new Tasks();
  #starts = 0;
  #rows = new Map();
  #open = new Set();
  // The result that is shown: {task, result, text}.
  #shown = null;
  #reading = null;
  #timer = null;
  #said = "";

  // `tell` is called when there are new figures about hosts.
  constructor(id, tell) {
    this.path = `jobs/${id}/output`;
    this.tell = tell;
    this.list = el("ol");
    this.note = el("p", { class: "note" });
    const filter = ({ target }) => this.list.classList.toggle("only-bad", target.checked);
    const tools = el("label", { class: "check" }, el("input", { type: "checkbox", onchange: filter }),
      "Only tasks that failed");
    const box = el("div", { class: "tasks", role: "region", tabindex: 0, "aria-label": "Tasks" }, this.list);
    this.element = el("div", { class: "printed" }, tools, box, this.note);
  }

  push(bytes) {
    this.#tasks.push(bytes);
    this.#timer ??= setTimeout(() => this.#draw(), PAUSE);
  }

  get hosts() {
    return this.#tasks.hosts;
  }

  say(words) {
    this.#said = words;
    this.#draw();
  }

  #draw() {
    clearTimeout(this.#timer);
    this.#timer = null;
    if (this.#starts !== this.#tasks.starts) {
      this.#starts = this.#tasks.starts;
      this.#rows.clear();
      this.#open.clear();
      this.#shown = null;
      fill(this.list);
    }
    for (const task of this.#tasks.news) this.#drawTask(task);
    this.#tasks.news.clear();
    const { isCut, left } = this.#tasks;
    fill(this.note, this.#said, this.#rows.size === 0 && " It tells of no tasks.",
      isCut && ` The first ${MOST_TASKS} tasks are shown.`, left > 0 && ` ${count(left, "result")} not kept here.`);
    this.tell();
  }

  #row(task) {
    const known = this.#rows.get(task);
    if (known) return known;
    const [words, hosts] = [el("span", { class: "counts" }), el("ul", { hidden: true })];
    const button = el("button", { type: "button", "aria-expanded": "false", onclick: () => this.#toggle(task) },
      el("bdi", {}, task.name), words);
    const row = { words, hosts, button, element: el("li", {}, button, hosts) };
    this.#rows.set(task, row);
    if (task.isFirst) this.list.append(el("li", { class: "play" }, "Play ", el("bdi", {}, task.play)));
    this.list.append(row.element);
    return row;
  }

  #drawTask(task) {
    const { words, hosts, element } = this.#row(task);
    element.classList.toggle("bad", task.counts.failed + task.counts.unreachable > 0);
    refill(words, sums(task.counts));
    if (!this.#open.has(task)) return;
    const rank = one => RANKS.indexOf(one.state);
    const results = [...task.results].sort((a, b) => rank(a) - rank(b) || (a.host < b.host ? -1 : 1));
    const total = RANKS.reduce((sum, word) => sum + task.counts[word], 0);
    const more = total - Math.min(results.length, MOST_HOSTS);
    refill(hosts, results.slice(0, MOST_HOSTS).map(one => this.#host(task, one)),
      more > 0 && el("li", { class: "note" }, `${count(more, "more host")} not shown`));
  }

  #host(task, result) {
    const shown = this.#shown?.result === result ? this.#shown : false;
    const press = () => this.#show(task, result);
    const button = el("button", { type: "button", "aria-expanded": String(shown !== false), onclick: press },
      named(result.host), " ", state(result.state, STATES[result.state]));
    const about = { class: "result", role: "region", tabindex: 0, "aria-label": `Result of ${result.host}` };
    return el("li", {}, button, shown && el("pre", about, shown.text));
  }

  #toggle(task) {
    const { hosts, button } = this.#row(task);
    if (!this.#open.delete(task)) this.#open.add(task);
    hosts.hidden = !this.#open.has(task);
    button.ariaExpanded = String(!hosts.hidden);
    if (hosts.hidden) fill(hosts);
    this.#drawTask(task);
  }

  // Shows the result of a host at a task, in place of the one that was shown; or that one no more.
  async #show(task, result) {
    this.#reading?.abort();
    const before = this.#shown;
    const shown = before?.result === result ? null : { task, result, text: "…" };
    this.#shown = shown;
    if (before && before.task !== task) this.#drawTask(before.task);
    this.#drawTask(task);
    if (!shown) return;
    this.#reading = new AbortController();
    shown.text = await this.#read(result, this.#reading);
    if (this.#shown === shown) this.#drawTask(task);
  }

  // The result in words. Asked for where it stands in the output, and no further.
  async #read({ host, place }, reading) {
    const lines = new RunnerStream(place, false);
    let found;
    try {
      const answer = await stream(this.path, { from: place }, reading.signal);
      for (const reader = answer.body.getReader(); !found;) {
        const { done, value } = await reader.read();
        found = done ? [] : lines.push(value)[0];
      }
    } catch (error) {
      return error.message;
    } finally {
      reading.abort();
    }
    const [at, event] = found;
    const isIt = at === place && text(event.event_data?.host) === host;
    if (!isIt) return "The output has this result no more, or it is too long to be shown.";
    const words = JSON.stringify(event.event_data.res ?? {}, null, 2);
    return words.length > LONGEST ? `${words.slice(0, LONGEST)}… ${words.length - LONGEST} more letters` : words;
  }

  // Nobody looks, for now or any more.
  rest() {
    this.#reading?.abort();
    if (this.#timer) this.#draw();
  }
}
