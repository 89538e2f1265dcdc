// What a playbook did, by play and task: how many hosts each task left in which state, and where in the stream the
// result of each host stands. It owns what counts as which state, and the most that is kept; it shows nothing.

import { RunnerStream } from "./runner.js";

// The states in which a task leaves a host, worst first, each with its class.
export const STATES = {
  failed: "bad", unreachable: "bad", ignored: "warn", changed: "warn", ok: "ok", skipped: "off",
};
const WORDS = Object.keys(STATES);
// What is kept of a playbook. Results beyond that are only counted.
export const MOST_TASKS = 2_000;
const MOST_RESULTS = 250_000;
const MOST_HOSTS = 20_000;
const LONGEST_NAME = 250;
const ENDS = {
  runner_on_ok: ({ res }) => (res?.changed === true ? "changed" : "ok"),
  runner_on_failed: data => (data.ignore_errors === true ? "ignored" : "failed"),
  runner_on_unreachable: data => (data.ignore_unreachable === true ? "ignored" : "unreachable"),
  runner_on_skipped: () => "skipped",
};

// A name, and nothing that keeps the whole of a long one in memory.
export function text(value) {
  const name = String(value ?? "");
  return name.length > LONGEST_NAME ? Array.from(name.slice(0, LONGEST_NAME)).join("") : name;
}

// What a recap says of a host.
export const recapState = ({ failures, dark, changed }) =>
  (failures > 0 ? "failed" : dark > 0 ? "unreachable" : changed > 0 ? "changed" : "ok");

export class Tasks {
  #stream = new RunnerStream();
  #tasks = new Map();
  #last = null;
  // Of each host its name and its state.
  #hosts = new Map();
  #kept = 0;
  // How often the playbook began: a job that lost its node starts again, and its last attempt counts.
  starts = 0;
  // Tasks that have changed since somebody emptied this.
  news = new Set();
  // Whether there were too many tasks, and results that were only counted.
  isCut = false;
  left = 0;

  push(bytes) {
    for (const [place, { event, event_data: data }] of this.#stream.push(bytes)) {
      if (event === "playbook_on_start") this.#begin();
      else if (event === "playbook_on_stats") this.#recap(data ?? {});
      else if (data && /^playbook_on_\w*task_start$/.test(event)) this.#task(data);
      else if (data && Object.hasOwn(ENDS, event)) this.#result(data, ENDS[event](data), place);
    }
  }

  // How many hosts are in which state, all in all.
  get hosts() {
    const counts = { ok: 0, changed: 0, failed: 0, unreachable: 0 };
    for (const { state } of this.#hosts.values()) counts[state] += 1;
    return counts;
  }

  #begin() {
    for (const all of [this.#tasks, this.#hosts, this.news]) all.clear();
    [this.#last, this.#kept, this.isCut, this.left] = [null, 0, false, 0];
    this.starts += 1;
  }

  // The same task comes again in another play, and with the next batch of hosts.
  #task(data) {
    const part = text(data.play_uuid);
    const key = JSON.stringify([part, text(data.task_uuid)]);
    const known = this.#tasks.get(key);
    if (known) return known;
    this.isCut ||= this.#tasks.size >= MOST_TASKS;
    if (this.isCut) return null;
    const made = {
      part, play: text(data.play), name: text(data.name ?? data.task), isFirst: this.#last?.part !== part,
      counts: Object.fromEntries(WORDS.map(word => [word, 0])), results: [],
    };
    this.#last = made;
    this.#tasks.set(key, made);
    this.news.add(made);
    return made;
  }

  #host(name, state) {
    const host = this.#hosts.get(name) ?? { name, state: "ok" };
    if (this.#hosts.size < MOST_HOSTS) this.#hosts.set(name, host);
    // One that failed and was rescued is known by the recap alone.
    const worst = WORDS.find(word => word === host.state || word === state);
    if (["failed", "unreachable", "changed"].includes(worst)) host.state = worst;
    return host;
  }

  #result(data, state, place) {
    const [task, host] = [this.#task(data), this.#host(text(data.host), state)];
    if (task) {
      task.counts[state] += 1;
      this.news.add(task);
    }
    const isKept = task && this.#kept < MOST_RESULTS;
    if (isKept) task.results.push({ host: host.name, state, place });
    this.#kept += isKept ? 1 : 0;
    this.left += isKept ? 0 : 1;
  }

  #recap(data) {
    const of = (key, host) => Object(data[key])[host];
    this.#hosts.clear();
    for (const name of Object.keys(Object(data.processed)).slice(0, MOST_HOSTS)) {
      const [failures, dark, changed] = ["failures", "dark", "changed"].map(key => of(key, name));
      this.#hosts.set(text(name), { name: text(name), state: recapState({ failures, dark, changed }) });
    }
  }
}
