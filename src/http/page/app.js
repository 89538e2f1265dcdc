// The page: which view is open, when it is read again, who is signed in, and what is told of events and of a node that
// does not answer. It knows no view from inside: each has a title, an element, `load`, which events it hears, and may
// have `beside` its title and `below` its element something more, `fills` if title and element are to take the window,
// `go` for another address of the same view, `rest` for when nobody looks, and `close`.

import { connection, may, openSession, session, signIn, signOut, tryNow } from "./api.js";
import { el, fill, link, named, onSend, say, shown } from "./dom.js";
import { jobView } from "./job.js";
import { jobsView } from "./jobs.js";
import { launchView } from "./launch.js";
import { doctorView, linksView, meshView, nodesView } from "./mesh.js";
import { overviewView, showNumbers } from "./overview.js";
import { savedJobView, savedView } from "./saved.js";

// Views by the first word of the address, and what they need.
const VIEWS = {
  overview: { open: overviewView, name: "Overview" },
  mesh: { open: meshView, name: "Mesh" },
  links: { open: linksView, name: "Links" },
  nodes: { open: nodesView, name: "Nodes" },
  jobs: { open: jobsView, name: "Jobs", controller: true },
  job: { open: jobView, controller: true, level: "read" },
  saved: { open: savedView, name: "Saved", controller: true, level: "read" },
  "saved job": { open: savedJobView, controller: true, level: "read" },
  launch: { open: launchView, name: "Launch", controller: true, level: "operate" },
  doctor: { open: doctorView, name: "Doctor", level: "read" },
};
// Seconds between two looks where events tell of changes, and where nothing does.
const CALM = 30;
const BLIND = 10;
// Milliseconds between two looks at least, whatever happens; and where jobs only change what a node has left.
const PAUSE = 1_000;
const PAUSE_FOR_JOBS = 5_000;
// Events that are listed, and milliseconds for which they are gathered before they are read out.
const MOST_EVENTS = 100;
const GATHERED = 5_000;
// What somebody who listens need not know at once: jobs come and go all the time.
const UNTOLD = ["job.state", "owner.takeover", "reload", "gap"];

const [main, banner, who, dialog, events, menu] =
  ["main", "banner", "who", "sign-in", "events", "menu"].map(id => document.getElementById(id));
const problem = el("p", { class: "error", role: "alert" });
// `rights` are those with which the view was opened.
let [view, current, timer, lastLook, rights] = [null, null, null, 0, null];

function parse(hash) {
  const [path, query] = hash.replace(/^#\//, "").split("?");
  const [word, rest] = path.split("/");
  const name = rest ? new URLSearchParams(`name=${rest.replaceAll("+", "%2B")}`).get("name") : null;
  const one = word === "jobs" && /^\d+$/.test(name) ? "job" : word === "saved" && name ? "saved job" : null;
  const list = Object.hasOwn(VIEWS, word) ? word : "overview";
  return { view: one ?? list, word: list, name, id: name, query: new URLSearchParams(query) };
}

const isOpen = ({ controller, level }) => (!controller || session.controller) && may(level ?? "none");

// Opens what the address names. Whoever came by a link of the page is at the view's title.
function go(isFirst) {
  const route = parse(location.hash);
  if (!isFirst && route.view === current && view.go) {
    view.go(route);
    return look();
  }
  view?.rest?.();
  view?.close?.();
  menu.ariaExpanded = "false";
  current = route.view;
  say("");
  for (const anchor of document.querySelectorAll("header nav a")) {
    anchor.ariaCurrent = anchor.hash === `#/${route.word}` ? "page" : null;
  }
  const needs = VIEWS[route.view];
  view = isOpen(needs) ? needs.open(route) : closed(needs);
  const title = el("h1", { tabindex: -1 }, view.title);
  document.title = shown(`${view.title} – ${session.node}`);
  const first = el("div", { class: view.fills && "window" },
    el("div", { class: "title" }, title, view.beside), problem, view.element);
  fill(main, first, view.below);
  main.setAttribute("aria-busy", "true");
  if (!isFirst) title.focus();
  return look();
}

function closed({ controller }) {
  const isMissing = controller && !session.controller;
  const why = isMissing ? "This node is not a control node." : "Sign in with a token that may see this.";
  return { title: "Not shown", element: el("p", {}, why), hears: () => false, load: async () => {} };
}

// Reads the view again: now, or once a look that has begun is over.
async function look() {
  clearTimeout(timer);
  const looked = view;
  looked.isLate = looked.isLooking;
  if (looked.isLooking) return;
  looked.isLooking = true;
  lastLook = Date.now();
  let wrong = "";
  try {
    await Promise.all([looked.load(), showNumbers()]);
  } catch (error) {
    wrong = error.code === "unreachable" ? "" : error.message;
  }
  looked.isLooking = false;
  if (looked !== view) return;
  fill(problem, wrong);
  main.removeAttribute("aria-busy");
  timer = setTimeout(lookIfSeen, looked.isLate ? PAUSE : (view.every ?? (may("read") ? CALM : BLIND)) * 1000);
}

const lookIfSeen = () => document.hidden || look();

// Reads the view again soon: many events are one look.
function lookSoon(pause) {
  clearTimeout(timer);
  timer = setTimeout(lookIfSeen, Math.max(lastLook + pause - Date.now(), 0));
}

function showSession() {
  document.getElementById("node").replaceChildren(named(session.node));
  const views = Object.entries(VIEWS).filter(([, one]) => one.name && isOpen(one));
  fill(document.querySelector("nav ul"), views.map(([word, { name }]) => el("li", {}, link(`#/${word}`, name))));
  events.hidden = !may("read");
  fill(who, session.who && [named(session.who), ` (${session.level})`],
    session.who
      ? el("button", { type: "button", onclick: () => signOut().catch(error => say(error.message, true)) }, "Sign out")
      : session.has_tokens && el("button", { type: "button", onclick: () => dialog.showModal() }, "Sign in"));
}

// An event in words.
function words({ event, node, peer, job, from, to, why }) {
  const [what, how] = event.split(".");
  if (what === "gap") return "events are missing here";
  if (what === "cert") return `certificate ${from} of ${node} ends ${to}`;
  const about = `${what} ${what === "owner" ? "of job " : ""}${job ?? node}${peer ? ` – ${peer}` : ""}`;
  const change = [from && ` from ${from}`, to && ` to ${to}`].filter(Boolean).join("") || (how ? ` is ${how}` : "");
  return `${about}${change}${why ? `: ${why}` : ""}`;
}

let [gathered, telling] = [[], null];

function tellEvent(event) {
  const list = events.querySelector("ol");
  const time = new Date(event.time ?? Date.now()).toLocaleTimeString();
  list.prepend(el("li", {}, el("time", { datetime: event.time }, time), " ", words(event)));
  while (list.children.length > MOST_EVENTS) list.lastElementChild.remove();
  if (UNTOLD.includes(event.event)) return;
  gathered.push(event);
  telling ??= setTimeout(() => {
    const last = words(gathered.at(-1));
    say(gathered.length > 1 ? `${gathered.length} events; the last one: ${last}` : last);
    [gathered, telling] = [[], null];
  }, GATHERED);
}

connection.addEventListener("event", ({ detail }) => {
  if (detail.seq !== undefined) tellEvent(detail);
  const isAside = detail.event === "job.state" && !current.startsWith("job");
  if (detail.event === "gap" || view?.hears(detail)) lookSoon(isAside ? PAUSE_FOR_JOBS : PAUSE);
});
connection.addEventListener("session", () => {
  const before = rights;
  rights = JSON.stringify([session.node, session.who, session.level, session.controller]);
  // After a loss everything is read again, and what somebody has opened or typed stays.
  if (before === rights) return void look();
  showSession();
  go(before === null);
  if (before !== null && !session.who) say("You are signed out.");
});
connection.addEventListener("lost", () => {
  const since = new Date().toLocaleTimeString();
  say("");
  fill(banner, `${session.node || "The node"} does not answer since ${since}. What you see is what was. `,
    el("button", { type: "button", onclick: () => tryNow() }, "Try now"));
});
connection.addEventListener("back", () => {
  fill(banner);
  say(`${session.node} answers again`);
});
document.addEventListener("visibilitychange", () => document.hidden && view?.rest?.());
menu.addEventListener("click", () => { menu.ariaExpanded = String(menu.ariaExpanded !== "true"); });
document.getElementById("skip").addEventListener("click", event => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", () => rights !== null && go(false));
const form = dialog.querySelector("form");
form.elements.leave.addEventListener("click", () => dialog.close());
dialog.addEventListener("close", () => { form.reset(); fill(form.querySelector(".error")); });
onSend(form, async ({ token }) => {
  await signIn(token.trim());
  dialog.close();
  main.querySelector("h1").focus();
  say(`You are signed in as ${session.who}`);
});
openSession().catch(() => {});
