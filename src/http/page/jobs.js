// The views of jobs: the list, of which one page at a time is here however many there are, and one job with why it
// waits and what it prints. It owns what an operator can do with a job.

import { get, may, post, stream, whole } from "./api.js";
import {
  Table, action, ago, count, el, facts, field, fill, jobLink, link, named, names, nodeLink, refill, searchForm,
  size as bytesOf, span, state, usage,
} from "./dom.js";
import { Playbook, Screen } from "./output.js";

const STATES = {
  pending: "warn", waiting: "warn", running: "run", successful: "ok", failed: "bad", error: "bad", canceled: "off",
};
const ENDED = ["successful", "failed", "error", "canceled"];
const PAGE = 50;
// Bytes of an output that are read.
const LARGE = 16 << 20;
// What the codes of an explanation mean; docs/jobs.md has what to do.
const WHY = {
  capacity: "not enough capacity is left", disabled: "disabled by an operator", draining: "being removed",
  not_ready: "not ready", unreachable: "out of reach", no_type: "has no work type ansible-runner",
  wrong_class: "runs no such jobs", needs_tls: "its control service has no TLS", group_empty: "has no members",
  needs_signature: "takes signed work only", group_jobs: "its limit of jobs is reached",
  group_forks: "its limit of forks is reached",
};

export function jobState(job) {
  const isEnding = job.cancel_requested && !ENDED.includes(job.state);
  return state(isEnding ? `${job.state}, to be canceled` : job.state, STATES[job.state] ?? "warn");
}

const aboutJobs = event => ["job.state", "owner.takeover"].includes(event.event);

export function jobsView(route) {
  let { query } = route;
  const box = name => el("label", { class: "check" },
    el("input", { type: "checkbox", name: "state", value: name }), name);
  const input = name => el("input", { name, autocomplete: "off", spellcheck: "false" });
  const form = searchForm(filter, el("fieldset", {}, el("legend", {}, "State"), Object.keys(STATES).map(box)),
    field("Name begins with", input("name")), field("Group", input("group")), field("Node", input("node")),
    el("button", { type: "submit" }, "Filter"));
  form.addEventListener("change", filter);
  const table = new Table("Jobs", [
    { head: "Job", cell: job => (may("read") ? jobLink(job.id) : job.id) },
    { head: "Name", cell: job => named(job.name) },
    { head: "State", cell: jobState },
    { head: "Node", cell: job => job.execution_node && nodeLink(job.execution_node) },
    { head: "Group", wide: true, cell: job => job.instance_group && named(job.instance_group) },
    { head: "Created", wide: true, cell: job => ago(job.created) },
    { head: "Time", wide: true, cell: job => span(job.elapsed) },
    { head: "Explanation", wide: true, cell: job => named(job.explanation) },
  ], job => job.id);
  const pages = el("nav", { "aria-label": "Pages", class: "pages" });
  const at = words => `#/jobs${words.size > 0 ? `?${words}` : ""}`;

  function filter(event) {
    event.preventDefault();
    const words = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
    location.replace(at(words));
  }

  function show() {
    for (const one of form.elements) {
      if (one.type === "checkbox") one.checked = query.getAll("state").includes(one.value);
      else if (one.name) one.value = query.get(one.name) ?? "";
    }
  }

  show();
  return {
    title: "Jobs",
    element: el("div", {}, form, table.element, pages),
    hears: aboutJobs,
    async load() {
      const words = ["name", "group", "node", "before", "kind"].map(key => [key, query.get(key)]);
      const wanted = { ...Object.fromEntries(words), state: query.getAll("state"), limit: PAGE };
      const { jobs, next } = await get("jobs", wanted);
      table.show(jobs, "No job is like that.");
      const [older, newest] = [new URLSearchParams(query), new URLSearchParams(query)];
      older.set("before", next);
      newest.delete("before");
      refill(pages, query.has("before") && link(at(newest), "Newest"), next != null && link(at(older), "Older"));
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

export function jobView(route) {
  const { id } = route;
  const title = el("h2", {});
  const [about, actions, why, more] = ["div", "p", "section", "div"].map(name => el(name, {}));
  actions.className = "actions";
  const output = new Output(id);
  const printed = el("section", { hidden: true }, el("h3", {}, "Output"), output.screen.element);
  const view = {
    title: `Job ${id}`,
    element: el("div", {}, title, actions, about, why, printed, more),
    hears: event => aboutJobs(event) && event.job === Number(id),
    // Seconds: what it has done so far changes without an event.
    every: 5,
    async load() {
      const job = await get(`jobs/${id}`);
      const hasEnded = ENDED.includes(job.state);
      [view.every, printed.hidden] = [hasEnded ? 60 : 5, false];
      fill(title, named(job.name), " ", jobState(job));
      refill(about, aboutJob(job));
      refill(more, attempts(job), hosts(job));
      showActions(job, hasEnded);
      refill(why, hasEnded && !job.silent ? [] : explanation(await get(`jobs/${id}/explain`)));
      output.follow(job, hasEnded);
    },
    // Nobody looks, for now or any more.
    rest: () => output.stop(),
  };

  // The buttons change with the job, and not with each look at it: one of them may have the focus.
  function showActions(job, hasEnded) {
    const hasFailures = job.host_counts?.failed > 0 || job.host_counts?.unreachable > 0;
    const key = `${hasEnded} ${hasFailures} ${job.cancel_requested}`;
    if (actions.dataset.key === key) return;
    actions.dataset.key = key;
    const rerun = failed_hosts => async () => {
      const again = await post(`jobs/${id}/rerun`, { failed_hosts });
      location.hash = `#/jobs/${again.id}`;
      return `Job ${id} runs again as job ${again.id}`;
    };
    const cancel = async () => {
      await post(`jobs/${id}/cancel`);
      await view.load();
      return `Job ${id} is being canceled`;
    };
    fill(actions, may("operate") && [
      !hasEnded && !job.cancel_requested && action("Cancel", cancel, `Cancel job ${id}, ${job.name}?`),
      hasEnded && action("Run again", rerun(false)),
      hasEnded && hasFailures && action("Run again on failed hosts", rerun(true)),
    ]);
  }
  return view;
}

function aboutJob(job) {
  const at = text => text && [new Date(text).toLocaleString(), " (", ago(text), ")"];
  const labels = Object.entries(job.labels ?? {}).map(([key, value]) => `${key}=${value}`);
  return facts([
    ["Explanation", job.explanation],
    ["Playbook", job.playbook && named(job.playbook)], ["Module", job.module && named(job.module)],
    ["Node", job.execution_node && nodeLink(job.execution_node)],
    ["Group", job.instance_group && named(job.instance_group)],
    ["Owner", job.controller_node && nodeLink(job.controller_node)],
    ["Launched by", named(job.launched_by)],
    ["Created", at(job.created)], ["Started", at(job.started)], ["Finished", at(job.finished)],
    ["Time", span(job.elapsed)], ["Exit code", job.rc], ["Limit", job.limit && named(job.limit)],
    ["Revision", job.revision && named(job.revision)], ["Labels", names(labels)],
    ["Needs", `${job.impact} of capacity`],
    ["Repeats", job.rerun_of && jobLink(job.rerun_of)],
    ["Depends on", job.depends_on.slice(0, 20).flatMap((one, number) => [number > 0 && ", ", jobLink(one)])],
    ["Output", job.output_lost && `lost with ${job.output_lost}`],
  ]);
}

function attempts(job) {
  const table = new Table("Attempts", [
    { head: "Attempt", cell: one => one.n },
    { head: "Node", cell: one => one.node && nodeLink(one.node) },
    { head: "Outcome", cell: one => one.outcome && state(one.outcome, STATES[one.outcome] ?? "bad") },
    { head: "Started", cell: one => ago(one.started) },
    { head: "Ended", cell: one => ago(one.ended) },
    { head: "Unit", wide: true, cell: one => named(one.unit) },
  ], one => one.n);
  table.show(job.attempts);
  return job.attempts.length > 0 && el("section", {}, table.element);
}

function hosts(job) {
  const rows = Object.entries(job.host_stats ?? {}).map(([host, counts]) => ({ host, ...counts }));
  const isBad = row => row.failures > 0 || row.dark > 0;
  const column = (key, head = key) => ({ head, cell: row => row[key] });
  const table = new Table("Hosts", [
    { head: "Host", cell: row => named(row.host) },
    { head: "Result", cell: row => (isBad(row) ? state("failed", "bad") : state("ok", "ok")) },
    column("ok"), column("changed"), column("failures", "failed"), column("dark", "unreachable"), column("skipped"),
    column("rescued"), column("ignored"),
  ], row => row.host);
  table.show(rows.sort((a, b) => isBad(b) - isBad(a)));
  const all = job.host_counts;
  const note = el("p", { class: "note" },
    all && `${count(all.hosts, "host")}: ${all.failed} failed, ${all.unreachable} unreachable.`,
    all?.hosts > rows.length && ` The first ${rows.length} are shown.`);
  return rows.length > 0 && el("section", {}, table.element, note);
}

// Why it waits, with what has the room that is missing.
function explanation(told) {
  const rows = told.groups.flatMap(group => group.instances.length > 0
    ? group.instances.map(one => ({ ...one, group: group.name })) : [{ ...group, group: group.name, name: null }]);
  const table = new Table("Where it may run", [
    { head: "Group", cell: one => named(one.group) },
    { head: "Instance", cell: one => one.name && nodeLink(one.name) },
    { head: "Why not", cell: one => (one.ok ? state("it may", "ok") : (WHY[one.why] ?? one.why)) },
    { head: "Needs", cell: one => one.needs },
    { head: "Used", cell: one => one.needs != null && usage(one.capacity - one.remaining, one.capacity, one.name) },
  ], one => JSON.stringify([one.group, one.name]));
  table.show(rows);
  const holders = group => group.held_by.map(one => [" ", jobLink(one.job), one.node && [" on ", named(one.node)]]);
  const { queue, silent } = told;
  const items = [
    told.checks.filter(check => !check.ok).map(check => [`${check.check}: `, check.detail]),
    queue && [[`Place in the queue: ${queue.place} of ${queue.of}`]],
    told.groups.filter(one => one.held_by.length > 0).map(one => [named(one.name), ": held by jobs", holders(one)]),
    silent && [[nodeLink(silent.node), silent.lost ? " is lost since " : " is out of reach, and counts as lost at ",
      new Date(silent.lost_at).toLocaleTimeString()]],
  ].flatMap(some => some || []);
  return [
    el("h3", {}, told.state === "pending" ? "Why it waits" : "How it goes"), el("p", {}, told.summary),
    items.length > 0 && el("ul", {}, items.map(item => el("li", {}, item))),
    rows.length > 0 && told.state === "pending" && table.element,
  ];
}

// Follows the output of a job, across losses of the connection: each byte is read once.
class Output {
  #at = 0;
  #reading = null;
  #isOver = false;
  #playbook = null;
  #note = "";

  constructor(id) {
    this.path = `jobs/${id}/output`;
    this.screen = new Screen(whole(this.path));
  }

  // Goes on where it stopped, unless it is being read. After the end of its job it does so until it has all of it.
  async follow(job, hasEnded) {
    if (this.#reading || this.#isOver || document.hidden) return;
    if (job.state === "pending" && job.output_bytes === 0) return;
    this.#reading = new AbortController();
    if (!this.#playbook) this.#begin(job.output_bytes);
    try {
      const answer = await stream(this.path, { from: this.#at, follow: !hasEnded }, this.#reading.signal);
      for (const reader = answer.body.getReader();;) {
        const { done, value } = await reader.read();
        if (done) break;
        this.#at += value.length;
        this.screen.push(this.#playbook.push(value));
      }
      this.#isOver = hasEnded && this.#at >= job.output_bytes;
      if (this.#isOver) this.screen.finish();
      const missing = answer.headers.get("X-Output-Missing");
      this.screen.say(this.#note + (missing ?? (this.#isOver ? "This is all." : "")));
    } catch (error) {
      if (error.name === "AbortError") return;
      this.#isOver = error.code === "not_found";
      this.screen.say(error.code ? error.message : "The connection was lost.");
    } finally {
      this.#reading = null;
    }
  }

  // The box keeps less than this, whatever came before.
  #begin(size) {
    const isCut = size > LARGE;
    this.#at = isCut ? size - LARGE : 0;
    this.#playbook = new Playbook(isCut);
    this.#note = isCut ? `Of ${bytesOf(size)} only the last ${bytesOf(LARGE)} were read. ` : "";
    this.screen.say(this.#note);
  }

  stop() {
    this.#reading?.abort();
  }
}
