// Talks to the node: reads, changes, streams, and the events that tell when to read again. It owns the session, and
// whether the node answers: after a loss it alone asks again, ever more rarely, and says when the node is back. It
// knows no view.

const BASE = "api/v1/";
// Milliseconds.
const PATIENCE = 20_000;
const FIRST_RETRY = 1_000;
const LAST_RETRY = 30_000;
const LEVELS = ["none", "read", "operate", "admin"];
const KINDS = ["link.up", "link.down", "node.seen", "node.lost", "node.joined", "node.removed", "host.state",
  "instance.state", "job.state", "owner.takeover", "store.up", "store.down", "cert.expires", "reload", "gap"];

const refusal = (code, message) => Object.assign(new Error(message), { code });

// Whether a level is enough.
export const may = level => LEVELS.indexOf(session.level) >= LEVELS.indexOf(level);

// Who we are, and what the node is.
export let session = { node: "", level: "none", controller: false };

// "lost" and "back" say whether the node answers, "session" that we may something else, "event" what has changed.
export const connection = new EventTarget();

let source = null;
// Whether the node is lost, when it is asked again, and how long to wait before that.
let [isLost, retry, wait] = [false, null, FIRST_RETRY];

const tell = (type, detail) => connection.dispatchEvent(new CustomEvent(type, { detail }));

function address(path, query) {
  const words = new URLSearchParams();
  for (const [key, value] of Object.entries(query ?? {})) {
    for (const one of [value].flat()) if (one !== "" && one != null) words.append(key, one);
  }
  return BASE + path + (words.size > 0 ? `?${words}` : "");
}

async function call(path, { query, patience = PATIENCE, ...options } = {}) {
  let response;
  try {
    const usual = { signal: AbortSignal.timeout(patience), redirect: "error" };
    response = await fetch(address(path, query), { ...usual, ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    lose();
    throw refusal("unreachable", "the node does not answer");
  }
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({}));
  // So a proxy says that the node is away.
  if (!error && response.status >= 502) lose();
  if (response.status === 401 && may("read")) openSession().catch(() => {});
  throw refusal(error?.code ?? "unreachable", error?.message ?? `the answer has the status ${response.status}`);
}

export const get = async (path, query, patience) => (await call(path, { query, patience })).json();

// All of a list that comes in pages, or its first 16: a mesh in which somebody makes up names may have any number.
export async function list(path) {
  const all = [];
  for (let [page, after] = [0, undefined]; page < 16 && after !== null; page += 1) {
    const answer = await get(path, { after });
    after = answer.next ?? null;
    all.push(...answer[path]);
  }
  return all;
}

// An answer whose bytes are read as they come, until the signal.
export const stream = (path, query, signal) => call(path, { query, signal });

// A file of the page.
export const file = async name => (await call(`../../page/${name}`)).text();

// The whole of what a stream shows, for a link.
export const whole = path => BASE + path;

// Changes something. A body that is no text is sent as JSON.
export async function post(path, body) {
  const isText = typeof body === "string";
  const headers = { "Content-Type": isText ? "application/octet-stream" : "application/json" };
  if (session.form_token) headers["X-Form-Token"] = session.form_token;
  const options = { method: "POST", headers, body: isText ? body : body && JSON.stringify(body) };
  // A job may be large, and takes the time that it takes.
  if (isText) options.signal = undefined;
  const response = await call(path, options);
  return response.status === 204 ? null : response.json();
}

export const signIn = token => post("session", { token }).then(openSession);
export const signOut = () => post("session/end").then(openSession);

// Reads who we are, and begins to listen. A node that says so is there.
export async function openSession() {
  session = await get("session");
  const wasLost = isLost;
  isLost = false;
  listen();
  if (wasLost) tell("back");
  tell("session");
}

// A browser has six connections to a server for all of its tabs: one that nobody sees holds none.
function listen() {
  source?.close();
  source = null;
  if (isLost) return;
  clearTimeout(retry);
  if (!may("read") || document.hidden) return;
  source = new EventSource(BASE + "events");
  for (const kind of KINDS) source.addEventListener(kind, ({ data }) => tell("event", JSON.parse(data)));
  source.addEventListener("open", () => { wait = FIRST_RETRY; });
  source.addEventListener("error", renew);
}

// Events may end, or be refused where too many listen, though the node answers: then views are read all the same. After
// an end, the browser itself begins again, and gets what it has missed.
function renew() {
  if (source?.readyState !== EventSource.CLOSED) return void get("session").catch(() => {});
  source = null;
  tryLater();
}

document.addEventListener("visibilitychange", () => {
  listen();
  if (!document.hidden && session.node !== "") tell("event", { event: "gap" });
});

function lose() {
  source?.close();
  source = null;
  if (isLost) return;
  [isLost, wait] = [true, FIRST_RETRY];
  tell("lost");
  tryLater();
}

// Viewers of one node do not all come back in the same moment.
function tryLater() {
  clearTimeout(retry);
  retry = setTimeout(tryNow, wait * (0.75 + Math.random() / 2));
  wait = Math.min(wait * 2, LAST_RETRY);
}

// Asks a node that was lost.
export const tryNow = () => openSession().catch(tryLater);
