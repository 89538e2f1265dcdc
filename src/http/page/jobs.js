// The list of jobs, of which one page at a time is here however many there are. It owns how the state of a job looks,
// and what it is called.

import { get, may } from "./api.js";
import {
  Table, count, el, jobLink, link, moment, named, nodeLink, onTyped, refill, searchForm, searchInput, span, state,
} from "./dom.js";

export const STATES = {
  pending: "warn", waiting: "warn", running: "run", successful: "ok", failed: "bad", error: "bad", canceled: "off",
};
export const ENDED = ["successful", "failed", "error", "canceled"];
const PAGE = 50;

export function jobState(job) {
  const isEnding = job.cancel_requested && !ENDED.includes(job.state);
  return state(isEnding ? `${job.state}, to be canceled` : job.state, STATES[job.state] ?? "warn");
}

export const failed = job => ["failed", "error"].includes(job.state);

// What a job runs, as the CLI says it: its name, and the flags that change what it does.
export function whatRuns({ name, playbook, module, limit, tags, skip_tags, check }) {
  const runs = `${playbook ?? ""}${module ?? ""}`;
  const flag = (word, value) => value && `${word} ${value}`;
  return [name, runs && !name.startsWith(runs) && `(${runs})`, flag("-l", limit), flag("-t", tags),
    flag("--skip-tags", skip_tags), check && "-C"].filter(Boolean).join(" ");
}

export const aboutJobs = event => ["job.state", "owner.takeover"].includes(event.event);

// Why a job is in its state, where that does not go without saying.
const CLEAR = ["running", "successful", "canceled"];
const why = job => job.failure?.line ?? (CLEAR.includes(job.state) ? "" : job.explanation);
const when = job => [job.started && `${span(job.elapsed)}, `, moment(job.started ?? job.created)];

const jobsTable = caption => new Table(caption, [
  { head: "Job", cell: job => (may("read") ? jobLink(job.id) : job.id) },
  { head: "Name", cell: job => [may("read") ? link(`#/jobs/${job.id}`, named(whatRuns(job))) : named(whatRuns(job)),
    why(job) && el("small", { class: "why" }, why(job))] },
  { head: "State", cell: jobState },
  { head: "Node", wide: true, cell: job => job.execution_node && nodeLink(job.execution_node) },
  { head: "Group", wide: true, cell: job => job.instance_group && named(job.instance_group) },
  { head: "Time", wide: true, cell: when },
], job => job.id);

// The last jobs of some, with the way to all of them.
export function lastJobs(caption, query) {
  const table = jobsTable(caption);
  return {
    element: el("section", { class: "whole" }, table.element, link(`#/jobs?${query}`, "All of these")),
    load: async () => table.show((await get(`jobs?${query}&limit=5`)).jobs),
  };
}

const DAY = 86_400_000;
// What an address may ask for besides states: with a word for people.
const FACETS = { name: "name begins with", group: "group", node: "node", kind: "kind", saved: "saved job" };

export function jobsView(route) {
  let { query } = route;
  const chip = (name, value, text, kind) => {
    const number = el("span");
    const input = el("input", { type: "checkbox", name, value });
    return { value, number, element: el("label", { class: `chip ${kind}` }, input, text, number) };
  };
  const chips = Object.entries(STATES).map(([name, kind]) => chip("state", name, name, kind));
  const day = chip("day", "true", "of the last 24 h", "");
  const search = searchInput("", { "aria-label": "Search", placeholder: "Name, playbook, label, host, explanation" });
  const facets = el("span", { class: "chips" });
  const form = searchForm(event => event.preventDefault(), search,
    el("div", { class: "chips" }, chips.map(one => one.element), day.element, facets));
  form.addEventListener("change", () => filter());
  onTyped(search, filter);
  const table = jobsTable("Jobs");
  const pages = el("nav", { "aria-label": "Pages", class: "pages" });
  const at = words => `#/jobs${words.size > 0 ? `?${words}` : ""}`;
  const without = key => {
    const words = new URLSearchParams(query);
    words.delete(key);
    return at(words);
  };

  function filter() {
    const kept = [...query].filter(([key]) => key in FACETS);
    location.replace(at(new URLSearchParams([...kept, ...new FormData(form)].filter(([, value]) => value !== ""))));
  }

  function show() {
    for (const one of form.elements) {
      if (one.type === "checkbox") one.checked = query.getAll(one.name).includes(one.value);
    }
    if (document.activeElement !== search) search.value = query.get("search") ?? "";
    refill(facets, Object.entries(FACETS).filter(([key]) => query.has(key)).map(([key, word]) =>
      el("a", { class: "chip", href: without(key), title: "Leave this filter out" }, `${word} ${query.get(key)} ×`)));
  }

  // The numbers at the states: of those jobs that the rest of the filter leaves.
  async function showCounts(wanted) {
    const { states } = await get("counts", { ...wanted, state: [] });
    for (const { value, number } of chips) number.textContent = states[value] ? ` ${states[value]}` : "";
  }

  show();
  return {
    title: "Jobs",
    element: el("div", {}, form, table.element, pages),
    hears: aboutJobs,
    async load() {
      const asked = query;
      const words = [...Object.keys(FACETS), "search"].map(key => [key, query.get(key)]);
      const since = query.has("day") ? new Date(Date.now() - DAY).toISOString() : null;
      const wanted = { ...Object.fromEntries(words), since, state: query.getAll("state") };
      const [{ jobs, next }] = await Promise.all(
        [get("jobs", { ...wanted, before: query.get("before"), limit: PAGE }), showCounts(wanted)]);
      // Somebody has typed on.
      if (asked !== query) return;
      const isSearched = query.has("search") && jobs.length < PAGE && next != null;
      table.show(jobs, isSearched ? "" : "No job is like that.");
      const older = new URLSearchParams(query);
      older.set("before", next);
      refill(pages, query.has("before") && link(without("before"), "Newest"),
        isSearched && `${count(jobs.length, "job")} found down to number ${next}. `,
        next != null && link(at(older), isSearched ? "Search older jobs" : "Older"));
    },
    // Other jobs. The form keeps the focus; another page begins at its top.
    go(other) {
      const isPage = query.get("before") !== other.query.get("before");
      query = other.query;
      show();
      if (isPage) table.element.scrollIntoView();
    },
  };
}
