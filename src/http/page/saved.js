// Saved jobs: the list, and one of them with its schedule, its last jobs and the form that starts it. It owns how a
// variable is asked for; whether a value fits it, the node says.

import { get, may, post } from "./api.js";
import {
  Table, action, box, el, facts, field, fill, goToJob, jobLink, lines, link, moment, named, names, onSend, onTyped,
  refill, savedLink, searchForm, searchInput, state, text,
} from "./dom.js";
import { aboutJobs, jobState, lastJobs } from "./jobs.js";

// Rows of the list: for each its last job is read.
const PAGE = 25;
const KINDS = { int: "a whole number", number: "a number", json: "JSON" };

// A text behind all names that come before those with this beginning: no name has a "~".
const before = text => text && `${text.slice(0, -1)}${String.fromCharCode(text.charCodeAt(text.length - 1) - 1)}~`;

const nextStarts = ({ enabled, paused, next }) =>
  (!enabled ? state("off", "off") : paused ? state("paused", "warn") : next.map(time => el("div", {}, moment(time))));

export function savedView({ query }) {
  const search = searchInput(query.get("name") ?? "");
  const [faults, pages] = [el("div"), el("nav", { "aria-label": "Pages", class: "pages" })];
  const table = new Table("Saved jobs", [
    { head: "Name", cell: one => [savedLink(one.name), one.description && el("small", { class: "why" },
      one.description), one.fault && el("p", { class: "error" }, one.fault)] },
    { head: "Next start", cell: one => one.schedule && nextStarts(one.schedule) },
    { head: "Last result", cell: one => one.job && [link(`#/jobs/${one.job.id}`, jobState(one.job)), " ",
      moment(one.job.started ?? one.job.created)] },
    { head: "Runs", wide: true, cell: one => one.runs && named(one.runs) },
  ], one => one.name);
  const at = words => `#/saved?${new URLSearchParams(words)}`;
  onTyped(search, () => location.replace(at({ name: search.value.trim().toLowerCase() })));
  return {
    title: "Saved",
    element: el("div", {}, searchForm(event => event.preventDefault(), field("Name begins with", search)), faults,
      table.element, pages),
    hears: () => false,
    async load() {
      const [asked, name] = [query, query.get("name") ?? ""];
      const page = { after: query.get("after") ?? before(name), limit: PAGE };
      const told = await get("saved", page);
      const rows = told.saved.filter(one => one.name.startsWith(name));
      const last = rows.map(one => get("jobs", { saved: one.name, limit: 1 }));
      const [{ schedules }, ...jobs] = await Promise.all([get("schedules", page), ...last]).catch(error => {
        // The names are here also while the store is away.
        table.show(rows);
        throw error;
      });
      if (asked !== query) return;
      const first = new Map(schedules.map(one => [one.name, { ...one, next: one.next.slice(0, 1) }]));
      table.show(rows.map((one, at) => ({ ...one, job: jobs[at].jobs[0], schedule: first.get(one.name) })));
      refill(faults, told.faults.map(fault => el("p", { class: "error" }, fault)));
      refill(pages, query.has("after") && link(at({ name }), "First"),
        told.next && rows.length === told.saved.length && link(at({ name, after: told.next }), "More"));
    },
    go(other) {
      if (query.get("after") !== other.query.get("after")) table.element.scrollIntoView();
      query = other.query;
      if (document.activeElement !== search) search.value = query.get("name") ?? "";
    },
  };
}

// A variable as a field of the form.
function asked([name, { type, description, default: usual, choices, pattern, secret }]) {
  const said = value => (typeof value === "string" && type !== "json" ? value : JSON.stringify(value));
  const more = { required: usual == null, value: usual == null ? "" : said(usual) };
  const note = [description, pattern && `matches ${pattern}`, KINDS[type]].filter(Boolean).join("; ");
  const option = value => el("option", { value, selected: value === more.value }, value);
  if (secret) return field(name, text(name, { ...more, type: "password", autocomplete: "new-password" }), note);
  if (choices.length > 0) {
    const values = [...(more.required ? [""] : []), ...choices.map(said)];
    return field(name, el("select", { name, required: more.required }, values.map(option)), note);
  }
  if (type === "bool") return box(name, [name, el("small", {}, note)], { checked: usual === true });
  return field(name, type === "json" || more.value.includes("\n") ? lines(name, more) : text(name, more), note);
}

function startForm({ name, vars }) {
  const form = el("form", { class: "launch" }, Object.entries(vars).map(asked),
    el("p", { class: "error", role: "alert" }),
    el("p", { class: "actions" }, el("button", { type: "submit" }, "Start")));
  onSend(form, async fields => {
    // An empty box is false; an empty number or JSON is what the file says.
    const given = Object.entries(vars).map(([one, { type }]) => [one, fields[one] ?? "false", type])
      .filter(([, value, type]) => value !== "" || type === "text");
    goToJob(await post(`saved/${encodeURIComponent(name)}/start`, { vars: Object.fromEntries(given) }));
  });
  return form;
}

export function savedJobView({ name }) {
  const [about, plan, start] = [el("div"), el("div"), el("section", { "aria-label": "Start it" })];
  const path = encodeURIComponent(name);
  const jobs = lastJobs("Last jobs", `saved=${path}`);
  let [shown, schedule] = ["", null];
  const pause = action("The schedule", async () => {
    showPlan(await post(`schedules/${path}/${schedule.paused ? "resume" : "pause"}`));
    return `The schedule of ${name} is ${schedule.paused ? "paused" : "resumed"}`;
  });

  function showPlan(told) {
    schedule = told?.name === name ? told : null;
    const { rule, zone, last, skipped, paused } = schedule ?? {};
    fill(pause, paused ? "Resume the schedule" : "Pause the schedule");
    pause.hidden = !schedule || !may("admin");
    refill(plan, schedule && facts([
      ["Schedule", `${rule} (${zone})`], ["Next starts", nextStarts(schedule)],
      ["Last start", last && [moment(last.tick), last.job && [", job ", jobLink(last.job)]]],
      ["Skipped", skipped && [moment(skipped.tick), `: ${skipped.why}`]],
    ]));
  }

  showPlan();
  return {
    title: `Saved job ${name}`,
    beside: el("p", { class: "actions" }, pause),
    element: el("div", {}, about, plan, start, jobs.element),
    hears: aboutJobs,
    async load() {
      const one = await get(`saved/${path}`);
      const list = [["Inventory", one.inventory], ["Tags", one.tags], ["Skip tags", one.skip_tags],
        ["Variables", one.extra_vars]].map(([head, all]) => [head, names(all)]);
      const words = [["Runs", one.runs], ["Source", one.source], ["Revision", one.revision], ["Limit", one.limit]]
        .map(([head, word]) => [head, word && named(word)]);
      refill(about, one.fault && el("p", { class: "error" }, one.fault),
        one.description && el("p", {}, one.description), facts([...words, ...list]));
      // What somebody has typed stays as long as the same is asked for.
      const wanted = JSON.stringify([one.hash !== null, one.vars]);
      if (shown !== wanted) fill(start, may("operate") && one.hash !== null && startForm(one));
      shown = wanted;
      const [told] = await Promise.all([get("schedules", { after: before(name), limit: 1 }), jobs.load()]);
      showPlan(told.schedules[0]);
    },
  };
}
