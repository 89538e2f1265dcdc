// Looks at the page in a browser, as somebody who uses it would: by its words, its keys, and what is on the screen. Each
// check is a function below; which one, and where the node is, comes from tests/system/test_page.py, which runs them all.
//
//     node check.mjs CHECK '{"url": …, "remote": …, "pictures": DIRECTORY or null}'

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

import { chromium } from "playwright-core";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const DESK = { width: 1600, height: 1000 };
const PHONE = { width: 375, height: 800 };
const VIEWS = ["mesh", "links", "nodes", "groups", "jobs", "launch", "doctor"];
const PATIENCE = 30_000;

const [, , name, given] = process.argv;
const options = JSON.parse(given);
// What the console and the policy for contents had to say; a check that expects some of it removes that.
const complaints = [];
let browser;

// Does something to the node: cut, mend, join, print, end, enable, stop, start, drop, with their arguments.
async function happen(word, ...args) {
  const answer = await fetch(options.remote + word, { method: "POST", body: JSON.stringify(args.map(String)) });
  assert.equal(answer.status, 204);
}

async function until(what, condition, patience = PATIENCE) {
  const deadline = Date.now() + patience;
  for (let last; ; await new Promise(resolve => setTimeout(resolve, 30))) {
    last = await condition();
    if (last) return last;
    assert.ok(Date.now() < deadline, `waited in vain for ${what}; last seen: ${JSON.stringify(last)}`);
  }
}

// A reader of the page, signed in at a level if one is given.
async function viewer({ token, scheme = "light", viewport = DESK, route = "mesh" } = {}) {
  const context = await browser.newContext({ viewport, colorScheme: scheme, reducedMotion: "reduce" });
  await context.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", event =>
      console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`),
    );
  });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.on("console", message => message.type() === "error" && complaints.push(message.text()));
  page.on("pageerror", error => complaints.push(error.stack));
  await page.goto(`${options.url}#/${route}`);
  await settled(page);
  if (token) await signIn(page, token);
  return page;
}

const settled = page => page.waitForSelector("main:not([aria-busy]) h1");

async function open(page, route) {
  await page.evaluate(hash => {
    location.hash = hash;
  }, `#/${route}`);
  await settled(page);
}

async function signIn(page, token) {
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByLabel("Token").fill(token);
  await page.getByLabel("Token").press("Enter");
  await page.getByRole("button", { name: "Sign out" }).waitFor();
  await settled(page);
}

const picture = (page, file) => options.pictures && page.screenshot({ path: `${options.pictures}/${file}.png` });

const said = page => page.locator("#said").innerText();

// Where each node is on the screen.
const places = page =>
  page.$$eval("#picture g[role=button]", all =>
    Object.fromEntries(all.map(one => [one.dataset.name, one.getAttribute("transform")])),
  );

// What has the focus: its text, or the node in the picture.
const focused = page =>
  page.evaluate(() => {
    const { dataset, textContent } = document.activeElement;
    return dataset.name ? `node ${dataset.name}` : textContent.trim();
  });

async function isAccessible(page, what) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const told = violations.map(
    one =>
      `${one.id}: ${one.help}: ${one.nodes
        .slice(0, 3)
        .map(node => `${node.html} ${node.failureSummary}`)
        .join("; ")}`,
  );
  assert.deepEqual(told, [], what);
}

// Nothing makes the page itself wider than the screen.
const isWithinScreen = async (page, what) =>
  assert.ok(
    await page.evaluate(() => document.documentElement.scrollWidth <= window.innerWidth),
    `${what} is wider than the screen`,
  );

// Fills in the form of a launch, by its labels, and waits until the job is there.
async function launch(page, fields, group) {
  await open(page, "launch");
  for (const [label, text] of Object.entries(fields)) await page.getByLabel(label, { exact: true }).fill(text);
  if (group) await page.getByLabel("Instance group").selectOption(group);
  await page.getByRole("button", { name: "Launch" }).click();
  await page.locator("h2 .state").waitFor();
}

const checks = {
  // Every view, light and dark, on a desk and on a phone.
  async views() {
    const last = (await (await fetch(`${options.url}api/v1/jobs?limit=1`)).json()).jobs[0].id;
    const routes = [
      ...VIEWS,
      `jobs/${last}`,
      `jobs/${last - 1}`,
      `jobs/${Math.max(last - 30, 1)}`,
      "mesh/execution-node-002.eu-west-1.example.org",
    ];
    const looks = [
      ["light", DESK, "desk"],
      ["dark", DESK, "dark"],
      ["light", PHONE, "phone"],
    ];
    // Colours do not depend on the size of a mesh.
    for (const [scheme, viewport, size] of looks.filter(
      ([, , size]) => size !== "dark" || options.nodes === 30 || options.pictures,
    )) {
      const page = await viewer({ token: "admin", scheme, viewport });
      for (const route of routes) {
        await open(page, route);
        if (route.startsWith("jobs/") && route !== `jobs/${last}`)
          await page.locator(".screen .line").first().waitFor();
        const what = `${options.nodes}-${size}-${route.replaceAll("/", "-")}`;
        await isWithinScreen(page, what);
        await picture(page, what);
        if (size !== "phone") await isAccessible(page, what);
      }
      await page.context().close();
    }
  },

  // No two labels overlap, none is cut by the picture's edge, and a long name is whole in its title.
  async labels() {
    const page = await viewer();
    const found = await page.$$eval("#picture text", all =>
      all.map(one => {
        const { left, right, top, bottom } = one.getBoundingClientRect();
        return {
          left,
          right,
          top,
          bottom,
          text: one.textContent,
          title: one.parentNode.querySelector("title").textContent,
        };
      }),
    );
    assert.equal(found.length, options.nodes);
    const edge = await page.locator("#picture").boundingBox();
    found.forEach((one, at) => {
      assert.equal([...one.text].length, 20);
      assert.match(one.title, /^execution-node-\d{3}\.eu-west-1\.example\.org: /);
      assert.ok(
        one.left >= edge.x && one.right <= edge.x + edge.width && one.bottom <= edge.y + edge.height,
        `${one.text} is cut off`,
      );
      for (const other of found.slice(at + 1)) {
        const isApart =
          one.right <= other.left || other.right <= one.left || one.bottom <= other.top || other.bottom <= one.top;
        assert.ok(isApart, `${one.title} and ${other.title} overlap`);
      }
    });
    const marks = await page.$$eval(
      "#picture circle",
      all =>
        new Set(
          all.map(one => {
            const { x, y } = one.getBoundingClientRect();
            return `${x} ${y}`;
          }),
        ).size,
    );
    assert.equal(marks, options.nodes);
  },

  // Links come and go, and a node as well: nobody else moves, and who has the focus keeps it.
  async flapping() {
    const page = await viewer({ token: "read" });
    const before = await places(page);
    await page.locator("#picture g[tabindex='0']").focus();
    const holder = await focused(page);
    const lines = () => page.locator("#picture line").count();
    const all = await lines();
    for (const ends of [
      [0, 4],
      [1, 2],
      [3, 11],
    ]) {
      await happen("cut", ...ends);
      await until("the link to go", async () => (await lines()) === all - 1);
      assert.deepEqual(await places(page), before);
      await happen("mend", ...ends);
      await until("the link to come back", async () => (await lines()) === all);
      assert.deepEqual(await places(page), before);
    }
    await happen("join", "newcomer");
    await until("a new node", async () => "newcomer" in (await places(page)));
    const { newcomer, ...others } = await places(page);
    assert.ok(newcomer);
    assert.equal(await focused(page), holder);
    await until("what has happened to be told", async () =>
      /events; the last one|newcomer is seen|is up/.test(await said(page)),
    );
    await page.reload();
    await settled(page);
    assert.deepEqual(Object.keys(await places(page)).length, Object.keys(before).length + 1);
    // A place is one of the whole picture: after the newcomer that may be shifted or more narrow, but as a whole.
    const ranks = (all, axis) => {
      const at = Object.fromEntries(Object.keys(before).map(node => [node, Math.round(all[node].match(/[\d.]+/g)[axis])]));
      const inOrder = [...new Set(Object.values(at))].sort((a, b) => a - b);
      return Object.fromEntries(Object.entries(at).map(([node, place]) => [node, inOrder.indexOf(place)]));
    };
    for (const axis of [0, 1]) assert.deepEqual(ranks(others, axis), ranks(before, axis));
  },

  // No mouse: every view, every node, a search, a change.
  async keyboard() {
    const page = await viewer({ token: "admin" });
    await page.reload();
    await settled(page);
    await page.keyboard.press("Tab");
    assert.equal(await focused(page), "Skip to the view");
    for (const view of ["Mesh", "Links", "Nodes", "Groups", "Jobs", "Launch", "Doctor"]) {
      await page.keyboard.press("Tab");
      assert.equal(await focused(page), view);
      const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
      assert.equal(outline, "solid", "the focus is to be seen");
    }
    await page.locator("#skip").focus();
    await page.keyboard.press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement.id), "main");
    await page.keyboard.press("Tab");
    await page.keyboard.type("node-017");
    await until("the one node", async () => (await page.locator("#picture g[role=button]:not(.dim)").count()) === 1);
    await page.keyboard.press("Enter");
    await until("the panel", async () => (await focused(page)).startsWith("execution-node-017"));
    await page.getByRole("heading", { name: "Jobs" }).waitFor();
    await page.keyboard.press("Escape");
    await until(
      "the focus on the node",
      async () => (await focused(page)) === "node execution-node-017.eu-west-1.example.org",
    );
    const seen = new Set();
    for (let step = 0; step < options.nodes; step += 1) {
      seen.add(await focused(page));
      await page.keyboard.press("ArrowRight");
    }
    assert.equal(seen.size, options.nodes, "each node is reached");
    await page.keyboard.press("Home");
    for (const [key, compare] of [
      ["ArrowDown", (a, b) => b > a],
      ["ArrowUp", (a, b) => b < a],
    ]) {
      const height = async () => (await page.locator("#picture g:focus").boundingBox()).y;
      const before = await height();
      await page.keyboard.press(key);
      assert.ok(compare(before, await height()), key);
    }
    await page.getByRole("link", { name: "Nodes", exact: true }).focus();
    await page.keyboard.press("Enter");
    await until("the title", async () => (await focused(page)) === "Nodes");
    await settled(page);
    // The row of this one goes to those that are disabled.
    await page.getByRole("button", { name: "Disable" }).nth(50).focus();
    await page.keyboard.press("Enter");
    await until("the change", async () => (await said(page)).endsWith("is disabled"));
    await until("the focus to stay", async () => (await focused(page)) === "Enable");
  },

  // What strangers have written is text, stays in its box, and reorders nothing.
  async hostile() {
    const page = await viewer({ token: "admin" });
    const last = (await (await fetch(`${options.url}api/v1/jobs?limit=1`)).json()).jobs[0];
    const node = encodeURIComponent(last.name);
    await happen(
      "print",
      last.id - 1,
      `\u001b[31m${last.name}\u001b[2J\u001b[1;1H\u001b]8;;javascript:alert(1)\u0007x\u001b[38;5;1mred\u001b[0m\r\nend`,
    );
    const routes = [
      ...VIEWS,
      `mesh/${node}`,
      `jobs/${last.id}`,
      `jobs/${last.id - 1}`,
      `jobs/${last.id - 30}`,
      "jobs?name=%3Cb%3E",
      "links?filter=%3Cimg",
      "%00/%E0%A4",
      "jobs/9999999",
    ];
    for (const route of routes) {
      await open(page, route);
      if (route === `jobs/${last.id - 1}`) await page.getByText("end", { exact: true }).waitFor();
      const found = await page.evaluate(() => ({
        hurt: globalThis.hurt,
        made: document.querySelectorAll(
          "main img, main script, main iframe, body [style], [onerror], a[href^='javascript']",
        ).length,
        text:
          document.body.innerText +
          [...document.querySelectorAll("[title], [aria-label]")].map(one => one.title + one.ariaLabel).join(""),
        marks: /\p{M}{4}/u.test(document.body.textContent),
        cut: [...document.querySelectorAll(".screen .line")].every(
          line => line.getBoundingClientRect().right <= line.parentNode.getBoundingClientRect().right,
        ),
      }));
      assert.deepEqual([found.hurt, found.made, found.marks, found.cut], [undefined, 0, false, true], route);
      assert.doesNotMatch(found.text, /(?![\t\n\r])[\p{Cc}\p{Cf}]/u, route);
      if (route !== "jobs/9999999" && !route.includes("?")) await isWithinScreen(page, route);
    }
    // A screenshot leaves a style of its own behind.
    for (const route of options.pictures ? routes : []) {
      await open(page, route);
      await picture(page, `hostile-${routes.indexOf(route)}`);
    }
    // Jobs that are not there are answered with an error, which the console notes.
    complaints.splice(0, complaints.length, ...complaints.filter(text => !text.includes("404")));
  },

  // The node goes and comes back: what was is still shown, what is new is read, and no byte of an output twice.
  async restart() {
    const [mesh, job] = [await viewer(), await viewer({ token: "operate" })];
    await open(job, `jobs/${options.job}`);
    await job.locator(".screen .line").first().waitFor();
    const [before, lines] = [await places(mesh), await mesh.locator("#picture line").count()];
    await happen("drop");
    await happen("print", options.job, "after the connection was lost");
    await job.getByText("after the connection was lost").waitFor();
    assert.equal(await job.locator("#banner").innerText(), "", "the node itself is there");
    assert.equal(await said(job), "");
    assert.equal(await job.locator(".screen .line").count(), 2);
    await happen("stop");
    for (const page of [mesh, job]) {
      // Who only looks at the mesh notices with the next look, or as soon as something is asked.
      if (page === mesh)
        await page.evaluate(() => {
          location.hash = "#/links";
        });
      await page.locator("#banner", { hasText: "does not answer" }).waitFor({ timeout: 40_000 });
    }
    await picture(job, "banner");
    assert.equal(await job.locator(".screen .line").count(), 2);
    await happen("cut", 0, 1);
    await happen("print", options.job, "while nobody looked");
    await happen("start");
    for (const page of [mesh, job])
      await until("the node to be back", async () => (await page.locator("#banner").innerText()) === "");
    await open(mesh, "mesh");
    await until("the state of now", async () => (await mesh.locator("#picture line").count()) === lines - 1);
    assert.deepEqual(await places(mesh), before);
    // A session ends with its node.
    await job.getByText("You are signed out.").waitFor();
    await signIn(job, "operate");
    await job.getByText("while nobody looked").waitFor();
    assert.equal(await job.locator(".screen .line").count(), 3);
    await happen("print", options.job, "and on");
    await job.getByText("and on").waitFor();
    complaints.splice(0, complaints.length, ...complaints.filter(text => !/ERR_|401/.test(text)));
  },

  // A tab that nobody sees holds no connection, and is up to date once it is seen again.
  async unseen() {
    const page = await viewer({ token: "read", route: `jobs/${options.job}` });
    await page.locator(".screen .line").first().waitFor();
    const see = isSeen =>
      page.evaluate(hidden => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
      }, !isSeen);
    const [requests, ended] = [[], []];
    page.on("request", request => requests.push(request.url()));
    page.on("requestfailed", request => ended.push(request.url().match(/events|output/)[0]));
    await see(false);
    await until("its connections to end", () => ended.length === 2);
    await happen("print", options.job, "unseen");
    await happen("enable", "execution-node-001.eu-west-1.example.org", "");
    assert.deepEqual([requests, await page.getByText("unseen").count()], [[], 0]);
    await see(true);
    await page.getByText("unseen").waitFor();
    assert.equal(await page.locator(".screen .line").count(), 2);
    // What is new on the page leaves the focus where it is.
    await page.locator("dd a").nth(1).focus();
    const link = await focused(page);
    await happen("end", options.job);
    await page.locator("h2 .state", { hasText: "successful" }).waitFor();
    await page.getByText("Finished").waitFor();
    assert.equal(await focused(page), link);
  },

  // Where no events can be had the page looks by itself, ever more rarely.
  async refused() {
    await happen("fill");
    const page = await viewer({ token: "read" });
    let asked = 0;
    page.on("request", request => { asked += request.url().endsWith("events"); });
    const lines = () => page.locator("#picture line").count();
    const before = await lines();
    await happen("cut", 1, 2);
    await until("the link to go", async () => (await lines()) === before - 1);
    await until("a third request", () => asked === 3);
    assert.equal(await page.locator("#banner").innerText(), "");
    complaints.splice(0, complaints.length, ...complaints.filter(text => !text.includes("429")));
  },

  async two_viewers() {
    const [one, other] = [
      await viewer({ token: "admin", route: "nodes" }),
      await viewer({ token: "operate", route: `jobs/${options.job}` }),
    ];
    const row = page => page.locator("tr", { has: page.locator('[title="execution-node-001.eu-west-1.example.org"]') });
    await open(other, "nodes");
    assert.equal(await other.getByRole("button", { name: "Disable" }).count(), 0, "only an administrator may");
    await row(one).getByRole("button", { name: "Disable" }).click();
    await row(other).getByText("disabled").waitFor();
    await open(other, `jobs/${options.job}`);
    await open(one, `jobs/${options.job}`);
    other.on("dialog", dialog => dialog.accept());
    await other.getByRole("button", { name: "Cancel" }).click();
    for (const page of [one, other]) await page.locator("h2 .state", { hasText: "canceled" }).waitFor();
    await other.getByRole("button", { name: "Run again", exact: true }).click();
    await until("the new job", async () => (await other.evaluate(() => location.hash)) !== `#/jobs/${options.job}`);
  },

  // However many jobs there are, the page has one page of them.
  async many_jobs() {
    const page = await viewer({ token: "read" });
    await open(page, "jobs");
    const rows = page.locator("tbody tr");
    assert.equal(await rows.count(), 50);
    const first = () => rows.first().locator("td").first().innerText();
    assert.equal(await first(), "100000");
    await page.getByRole("link", { name: "Older" }).focus();
    await page.keyboard.press("Enter");
    await until("older jobs", async () => (await first()) === "99950");
    assert.equal(await rows.count(), 50);
    await page.goBack();
    await until("the newest jobs", async () => (await first()) === "100000");
    await page.getByLabel("failed").focus();
    await page.keyboard.press("Space");
    await until("the filter", async () => page.url().includes("state=failed"));
    assert.equal(await page.evaluate(() => document.activeElement.value), "failed", "a filter keeps the focus");
    await page.getByLabel("Name begins with").fill("site-2");
    await page.getByRole("button", { name: "Filter" }).click();
    const cells = column => page.locator(`tbody td:nth-child(${column})`).allInnerTexts();
    await until("the filter", async () =>
      [...(await cells(2)), ...(await cells(3))].every(text => text === "site-2.yml" || text === "failed"),
    );
    assert.equal(await rows.count(), 50);
    await page.getByRole("link", { name: "Older" }).click();
    await until(
      "older ones of these",
      async () => page.url().includes("before=") && page.url().includes("state=failed"),
    );
    await page.getByLabel("Node").fill("nowhere");
    await page.getByLabel("Node").press("Enter");
    await page.getByText("No job is like that.").waitFor();
    const elements = await page.evaluate(() => document.querySelectorAll("*").length);
    assert.ok(elements < 1_500, `${elements} elements`);
  },

  // A job that prints without end: the box has its last lines, and the browser stays quick.
  async long_output() {
    await happen(
      "print",
      options.job,
      "a line of some length, of which there are very many, each like the one before",
      200_000,
    );
    await happen("print", options.job, "the last line");
    const page = await viewer({ token: "read", route: `jobs/${options.job}` });
    await settled(page);
    await page.getByText("the last line", { exact: true }).waitFor();
    const count = selector => page.evaluate(all => document.querySelectorAll(all).length, selector);
    assert.equal(await count(".screen .line"), 5_000);
    await happen("print", options.job, "\u001b[31ma\u001b[32mb".repeat(2_000), 200);
    await happen("print", options.job, "x".repeat(50_000));
    await happen("print", options.job, "the very last line");
    await page.getByText("the very last line", { exact: true }).waitFor();
    assert.ok((await count("*")) < 50_000, "each change of colour costs an element");
    const letters = await page.evaluate(() =>
      Math.max(...[...document.querySelectorAll(".screen .line")].map(line => line.textContent.length)),
    );
    assert.ok(letters < 5_000, `a line of ${letters} letters`);
    assert.match(await page.locator(".screen + .note").innerText(), /^Of \d+\.\d MiB only the last 16.0 MiB were read\./);
    await until("the note", async () =>
      /The first \d+ lines are not shown/.test(await page.locator(".screen + .note").innerText()),
    );
    const tail = page.getByLabel("Keep the end in sight");
    assert.ok(await tail.isChecked());
    await page.locator(".screen").evaluate(box => {
      box.scrollTop = 0;
    });
    await until("the tail to be let go", async () => !(await tail.isChecked()));
    await happen("print", options.job, "later");
    await page.getByText("later", { exact: true }).waitFor({ state: "attached" });
    assert.equal(await page.locator(".screen").evaluate(box => box.scrollTop < 100), true);
  },

  // What a level may see, and the way to another one.
  async sessions() {
    const page = await viewer();
    const views = () => page.locator("header nav a:visible").allInnerTexts();
    assert.deepEqual(await views(), ["Mesh", "Links", "Nodes", "Groups", "Jobs"]);
    await open(page, `jobs/${options.job}`);
    await page.getByText("Sign in with a token that may see this.").waitFor();
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByLabel("Token").fill("wrong");
    await page.getByLabel("Token").press("Enter");
    await page.getByText("This node does not know that token.").waitFor();
    await picture(page, "sign-in");
    await isAccessible(page, "the form");
    await page.getByLabel("Token").fill("read");
    await page.getByLabel("Token").press("Enter");
    await page.locator(".screen .line").first().waitFor();
    assert.deepEqual(await views(), ["Mesh", "Links", "Nodes", "Groups", "Jobs", "Doctor"]);
    assert.equal(await page.getByRole("button", { name: "Cancel" }).count(), 0);
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByText("You are signed out.").waitFor();
    assert.equal(await page.locator(".screen").count(), 0);
    complaints.splice(0, complaints.length, ...complaints.filter(text => !text.includes("401")));
  },

  // The form of a launch. What it sends is looked at by whoever runs this.
  async launch() {
    await launch(await viewer({ token: "operate" }), options.fields, options.group);
  },

  // A real node, with a real runner: what its operator does in a day.
  async real() {
    const page = await viewer();
    page.on("dialog", dialog => dialog.accept());
    await until("all nodes", async () => Object.keys(await places(page)).length === options.nodes);
    await signIn(page, "t-admin");
    await open(page, "links");
    await page.locator("td", { hasText: / ms$/ }).first().waitFor();
    await launch(page, options.project);
    await page.locator(".screen").getByText(options.printed).first().waitFor({ timeout: 60_000 });
    await page.locator("h2 .state", { hasText: "successful" }).waitFor();
    await page.getByText("This is all.").waitFor();
    assert.match(await page.locator(".screen").innerText(), /PLAY RECAP[^]*localhost +: ok=2/);
    assert.ok((await page.locator(".screen .c2, .screen .c3").count()) > 0, "the playbook's colours");
    await page.locator("tr", { hasText: "localhost" }).getByText("ok").waitFor();
    const first = await page.evaluate(() => location.hash);
    await picture(page, "real-successful");
    await launch(page, { ...options.project, Playbook: "slow.yml" });
    await page.locator(".screen").getByText("TASK [Sleep]").waitFor({ timeout: 60_000 });
    await page.getByRole("button", { name: "Cancel" }).click();
    await page.locator("h2 .state", { hasText: /^canceled$/ }).waitFor({ timeout: 60_000 });
    await open(page, "nodes");
    const row = page.locator("tr", { has: page.locator('[title="e1"]') });
    await row.getByRole("button", { name: "Disable" }).click();
    await row.getByText("disabled").waitFor();
    await row.getByRole("button", { name: "Enable" }).click();
    await row.getByText("ready").waitFor();
    await open(page, "doctor");
    await page.getByText("examines another one").waitFor();
    await happen("stop");
    await page.locator("#banner", { hasText: "does not answer" }).waitFor({ timeout: 40_000 });
    await happen("start");
    await page.getByText("You are signed out.").waitFor({ timeout: 40_000 });
    await signIn(page, "t-read");
    await open(page, first.slice(2));
    await page.locator(".screen").getByText(options.printed).first().waitFor();
    assert.equal(await page.getByRole("button", { name: "Run again" }).count(), 0);
    complaints.splice(0, complaints.length, ...complaints.filter(text => !/ERR_|401/.test(text)));
  },

  // What the page makes of a runner's stream, in pieces of a length.
  async playbook() {
    const { Playbook } = await import("../../src/http/page/output.js");
    const [playbook, bytes] = [new Playbook(), readFileSync(options.stream)];
    for (let at = 0; at < bytes.length; at += options.length) {
      process.stdout.write(playbook.push(bytes.subarray(at, at + options.length)));
    }
  },

  // Where the page puts the nodes of a mesh.
  async layout() {
    const { layout } = await import("../../src/http/page/topology.js");
    const { nodes, links } = JSON.parse(readFileSync(options.mesh, "utf8"));
    console.log(JSON.stringify(Object.fromEntries(layout(nodes, links, new Map()))));
  },
};

try {
  if (!["layout", "playbook"].includes(name))
    browser = await chromium.launch({
      executablePath: options.chromium ?? "/usr/bin/chromium",
      args: ["--no-sandbox"],
    });
  await checks[name]();
  assert.deepEqual(complaints, []);
} finally {
  await browser?.close();
}
