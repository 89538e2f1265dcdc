// The view of one job: why it waits or failed, what it prints, and on which hosts. It owns what is said first, and what
// an operator can do with a job.

import { get, may, post, whole } from "./api.js";
import {
  Table, action, count, el, facts, jobLink, link, moment, named, names, nodeLink, refill, say, savedLink, span, state,
  usage,
} from "./dom.js";
import { Folds, hostsBar } from "./folds.js";
import { Output } from "./follow.js";
import { ENDED, STATES, aboutJobs, failed, jobState, whatRuns } from "./jobs.js";
import { Screen } from "./output.js";
import { recapState, STATES as TASKS } from "./tasks.js";

// Bytes of an output: the box keeps less than its last ones, whatever came before, and tasks begin with the first.
const LAST = 16 << 20;
const FIRST = 256 << 20;
// What the codes of an explanation mean; docs/jobs.md has what to do.
const WHY = {
  capacity: "not enough capacity is left", disabled: "disabled by an operator", draining: "being removed",
  not_ready: "not ready", unreachable: "out of reach", no_type: "has no work type ansible-runner",
  wrong_class: "runs no such jobs", needs_tls: "its control service has no TLS", group_empty: "has no members",
  needs_signature: "takes signed work only", group_jobs: "its limit of jobs is reached",
  group_forks: "its limit of forks is reached",
};

export function jobView(route) {
  const { id } = route;
  const [name, actions] = [el("h2"), el("p", { class: "actions" })];
  const [short, failure, why, below] = ["div", "div", "section", "div"].map(kind => el(kind));
  const bar = el("div", { class: "hosts" });
  let [job, hasEnded] = [null, false];
  const screen = new Screen(whole(`jobs/${id}/output`));
  const folds = new Folds(id, () => refill(bar, hostsBar(inStates(job, folds.hosts))));
  // Two looks at what it does, of which one is read at a time.
  const looks = [
    { name: "Output", element: screen.element, output: new Output(id, screen, { last: LAST }) },
    { name: "Tasks", element: folds.element, output: new Output(id, folds, { first: FIRST }) },
  ];
  for (const one of looks) one.button = el("button", { type: "button", onclick: () => choose(one) }, one.name);
  const printed = el("section", { class: "printed", "aria-label": "What it does" },
    el("div", { class: "actions looks" }, looks.map(one => one.button), bar), looks.map(one => one.element));
  printed.hidden = true;
  let look = null;
  choose(looks[0]);

  // Whoever opens a failed job looks for the failure; with a box that says it, the end is of more use.
  async function read() {
    const isWhole = job && await look.output.follow(job, hasEnded);
    if (isWhole && failed(job) && !job.failure && look === looks[0]) screen.step(1);
  }

  function rest() {
    look.output.stop();
    folds.rest();
  }

  function choose(chosen) {
    if (look) rest();
    look = chosen;
    for (const one of looks) {
      one.element.hidden = one !== look;
      one.button.ariaPressed = String(one === look);
    }
    read();
  }

  // Shows what stands at a place of the output.
  function show(offset) {
    choose(looks[0]);
    if (screen.reach(offset)) screen.box.focus();
    else say("That place is not among the lines that are shown: the whole output has it.", true);
  }

  const view = {
    title: `Job ${id}`,
    beside: [name, actions],
    element: el("div", { class: "job" }, short, failure, why, printed),
    below,
    fills: true,
    hears: event => aboutJobs(event) && event.job === Number(id),
    // Seconds: what it has done so far changes without an event.
    every: 5,
    async load() {
      job = await get(`jobs/${id}`);
      hasEnded = ENDED.includes(job.state);
      view.every = hasEnded ? 60 : 5;
      printed.hidden = job.state === "pending" && job.output_bytes === 0;
      refill(name, jobState(job), named(whatRuns(job)));
      refill(short, inShort(job));
      refill(failure, job.failure && failureBox(job.failure, show));
      refill(bar, hostsBar(inStates(job, folds.hosts)));
      refill(below, attempts(job), hosts(job), el("details", {}, el("summary", {}, "All facts"), aboutJob(job)));
      showActions();
      refill(why, hasEnded && !job.silent ? [] : explanation(await get(`jobs/${id}/explain`)));
      read();
    },
    // Nobody looks, for now or any more.
    rest,
  };

  function showActions() {
    // What is pressed cannot be pressed again until it is done.
    if (actions.querySelector(":disabled")) return;
    const hasFailures = job.host_counts?.failed > 0 || job.host_counts?.unreachable > 0;
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
    refill(actions, may("operate") && [
      !hasEnded && !job.cancel_requested && action("Cancel", cancel, `Cancel job ${id}, ${job.name}?`),
      hasEnded && action("Run again", rerun(false)),
      hasEnded && hasFailures && action("Run again on failed hosts", rerun(true)),
      hasEnded && job.header?.sync && job.playbook && link(`#/launch?job=${id}`, "Run again with changes"),
    ]);
  }
  return view;
}

// How long, when, where and by whom, in a line; and why, unless a box says it.
function inShort(job) {
  const group = job.instance_group && [" in ", named(job.instance_group)];
  const parts = [
    job.started ? [`${span(job.elapsed)}, `, moment(job.started)] : ["created ", moment(job.created)],
    job.execution_node && ["on ", nodeLink(job.execution_node), group],
    job.launched_by && ["by ", named(job.launched_by)],
    job.labels?.["meshd/saved"] && ["of ", savedLink(job.labels["meshd/saved"])],
    job.rc > 0 && `exit code ${job.rc}`,
    job.rerun_of && ["repeats ", jobLink(job.rerun_of)],
    job.output_lost && ["its output was lost with ", named(job.output_lost)],
  ].filter(Boolean);
  const why = job.state !== "successful" && !job.failure && job.explanation;
  return [
    el("p", { class: "facts" }, parts.flatMap((part, at) => [at > 0 && " · ", part])),
    why && el("p", { class: failed(job) && "error" }, el("bdi", {}, why)),
  ];
}

// Why a job failed: hosts, task and message, each with the way to its place in the output.
function failureBox({ line, tasks = [] }, show) {
  const place = (name, offset) => el("button", { type: "button", onclick: () => show(offset) }, name);
  const item = ({ task, hosts = [], count: all, message, offset }) => el("li", {},
    offset == null ? el("bdi", {}, task) : place(el("bdi", {}, task), offset),
    " on ", names(hosts), all > hosts.length && ` and ${all - hosts.length} more`, ": ", el("bdi", {}, message));
  return el("div", { class: "failure", role: "region", "aria-label": "Why it failed", tabindex: 0 },
    el("p", {}, el("bdi", {}, line)), tasks.length > 0 && el("ul", {}, tasks.map(item)));
}

// How many hosts are in which state: as the recap of the playbook tells, or as its tasks do until then. The node tells
// the first rows of a recap, and sums.
function inStates(job, told) {
  const [rows, all] = [Object.values(job?.host_stats ?? {}), job?.host_counts];
  if (!all || Object.values(told).some(number => number > 0)) return told;
  const { failed, unreachable, hosts: number } = all;
  if (rows.length < number) return { failed, unreachable, "ok or changed": number - failed - unreachable };
  return rows.map(recapState).reduce((sums, state) => ({ ...sums, [state]: (sums[state] ?? 0) + 1 }), {});
}

// Whatever else the node tells of a job.
function aboutJob(job) {
  const labels = Object.entries(job.labels ?? {}).map(([key, value]) => `${key}=${value}`);
  const plain = Object.entries(job).filter(([, value]) => ["string", "number"].includes(typeof value) && value !== "");
  const said = value => (/^\d{4}-\d\d-\d\dT/.test(value) ? moment(value) : named(value));
  return facts([
    ...plain.map(([key, value]) => [key.replaceAll("_", " "), said(value)]), ["labels", names(labels)],
    ["depends on", job.depends_on.slice(0, 20).flatMap((one, number) => [number > 0 && ", ", jobLink(one)])],
  ]);
}

function attempts(job) {
  const table = new Table("Attempts", [
    { head: "Attempt", cell: one => one.n },
    { head: "Node", cell: one => one.node && nodeLink(one.node) },
    { head: "Outcome", cell: one => one.outcome && state(one.outcome, STATES[one.outcome] ?? "bad") },
    { head: "Started", cell: one => moment(one.started) },
    { head: "Ended", cell: one => moment(one.ended) },
    { head: "Unit", wide: true, cell: one => named(one.unit) },
  ], one => one.n);
  table.show(job.attempts);
  return job.attempts.length > 1 && el("section", {}, table.element);
}

function hosts(job) {
  const rows = Object.entries(job.host_stats ?? {}).map(([host, counts]) => ({ host, ...counts }));
  const isBad = row => row.failures > 0 || row.dark > 0;
  const column = (key, head = key) => ({ head, cell: row => row[key] });
  const table = new Table("Hosts", [
    { head: "Host", cell: row => named(row.host) },
    { head: "Result", cell: row => state(recapState(row), TASKS[recapState(row)]) },
    column("ok"), column("changed"), column("failures", "failed"), column("dark", "unreachable"), column("skipped"),
    column("rescued"), column("ignored"),
  ], row => row.host);
  table.show(rows.sort((a, b) => isBad(b) - isBad(a)));
  const all = job.host_counts;
  const note = all?.hosts > rows.length && el("p", { class: "note" }, `${rows.length} of ${all.hosts} are shown.`);
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
  const waits = told.state === "pending";
  const items = [
    told.checks.filter(check => !check.ok).map(check => [`${check.check}: `, check.detail]),
    queue && [[`Place in the queue: ${queue.place} of ${queue.of}`]],
    told.groups.filter(one => one.held_by.length > 0).map(one => [named(one.name), ": held by jobs", holders(one)]),
    silent && [[nodeLink(silent.node), silent.since && [" out of reach since ", moment(silent.since)],
      silent.lost ? ", lost since " : ", counts as lost at ", moment(silent.lost_at)]],
  ].flatMap(some => some || []);
  if (told.state === "running" && items.length === 0) return [];
  return [
    waits && el("h3", {}, "Why it waits"), el("p", {}, told.summary),
    items.length > 0 && el("ul", {}, items.map(item => el("li", {}, item))),
    rows.length > 0 && waits && table.element,
  ];
}
