// How much there is and what is wrong, as numbers: in a line above every view, and as the first view with the capacity
// of each group. It owns how a number is said and where it leads; the node counts.

import { get, may, session } from "./api.js";
import { Table, count, el, jobLink, link, named, names, refill, span, usage } from "./dom.js";
import { jobsTable } from "./jobs.js";
import { causes } from "./outages.js";

const DAY = "#/jobs?day=true&";

// Numbers, each as its class, its words, and the address of those that are meant.
function numbers({ nodes, links, jobs }) {
  const lost = nodes.out_of_reach;
  const wrong = [["bad", links.broken, "broken"], ["bad", links.lossy, "lossy"], ["warn", links.one_sided, "one-sided"]]
    .filter(([, number]) => number > 0)
    .map(([kind, number, word]) => [kind, `${count(number, "link")} ${word}`, `#/links?filter=${word}`]);
  const waits = jobs?.oldest && span((Date.now() - Date.parse(jobs.oldest.created)) / 1000).replace(/ \d+ s$/, "");
  return [
    lost > 0 ? ["bad", `${lost} of ${count(nodes.all, "node")} out of reach`, "#/nodes?filter=out+of+reach"]
      : ["ok", `${count(nodes.all, "node")} in reach`, "#/nodes"],
    ...(wrong.length > 0 ? wrong : [["ok", `${count(links.all, "link")} up`, "#/links"]]),
    ...(jobs ? [
      [jobs.failed > 0 ? "bad" : "ok", `${count(jobs.failed, "job")} failed in 24 h`, `${DAY}state=failed&state=error`],
      [jobs.waiting > 0 ? "warn" : "ok", waits ? `${jobs.waiting} waiting, the longest for ${waits}` : "none waiting",
        "#/jobs?state=pending&state=waiting"]] : []),
  ];
}

// Asked once for whoever looks at the same moment: the line above every view, and the first view.
let asked = null;
const overview = () => (asked ??= get("overview").finally(() => { asked = null; }));

// The line above every view.
export async function showNumbers() {
  const told = numbers(await overview());
  refill(document.getElementById("numbers"),
    told.map(([kind, words, route]) => el("li", {}, el("a", { class: kind, href: route }, words))));
}

export function overviewView() {
  const [sums, lost] = [el("div"), el("div", { role: "status" })];
  const failed = jobsTable("Failed last");
  const failures = el("section", { hidden: true, class: "whole" }, failed.element);
  const group = one => [link(`#/jobs?group=${encodeURIComponent(one.name)}`, named(one.name)),
    one.is_container_group && " (containers)"];
  const members = one =>
    one.is_container_group ? named(one.cluster ?? "") : names(one.members.map(member => member.name), 3);
  const most = one => [one.max_concurrent_jobs && count(one.max_concurrent_jobs, "job"),
    one.max_forks && count(one.max_forks, "fork")].filter(Boolean).join(", ");
  const groups = new Table("Capacity", [
    { head: "Group", cell: group },
    { head: "Capacity", cell: one => usage(one.consumed_capacity, one.capacity, `Used capacity of ${one.name}`) },
    { head: "Jobs", cell: one => one.jobs_running },
    { head: "At most", wide: true, cell: most },
    { head: "Instances", wide: true, cell: members },
  ], one => one.name);
  const capacity = el("section", { hidden: true }, groups.element);
  const sum = (number, words, route, kind) =>
    el("li", {}, el("a", { href: route, class: kind }, el("strong", {}, number), " ", words));

  return {
    title: "Overview",
    element: el("div", {}, sums, lost, failures, capacity),
    hears: event => /^(link|node|instance|job)\./.test(event.event),
    async load() {
      const [{ nodes, links, jobs }, told] = await Promise.all([overview(), get("outages")]);
      refill(lost, causes(told));
      const reached = nodes.all - nodes.out_of_reach;
      refill(sums, el("ul", { class: "sums" },
        sum(`${reached} of ${nodes.all}`, "nodes in reach", "#/mesh", reached < nodes.all && "bad"),
        sum(links.all, "links", "#/links"),
        jobs && [
          sum(jobs.running, "running", "#/jobs?state=running"),
          sum(jobs.waiting, "waiting", "#/jobs?state=pending&state=waiting", jobs.waiting > 0 && "warn"),
          sum(jobs.successful, "successful in 24 h", `${DAY}state=successful`),
          sum(jobs.failed, "failed in 24 h", `${DAY}state=failed&state=error`, jobs.failed > 0 && "bad")]),
      jobs?.oldest && el("p", {}, "Job ", may("read") ? jobLink(jobs.oldest.id) : jobs.oldest.id, " waits longest."));
      capacity.hidden = failures.hidden = !session.controller;
      if (!session.controller) return;
      const [all, last] = await Promise.all(
        [get("groups"), get("jobs", { state: ["failed", "error"], limit: 5 })]);
      groups.show(all.groups);
      failed.show(last.jobs, "No job has failed.");
    },
  };
}
