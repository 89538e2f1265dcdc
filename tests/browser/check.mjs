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
const LAPTOP = { width: 1280, height: 800 };
const PHONE = { width: 390, height: 844 };
const VIEWS = ["overview", "mesh", "links", "nodes", "jobs", "saved", "saved/deploy", "launch", "doctor"];
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
  const menu = page.getByRole("button", { name: "Menu" });
  if (await menu.isVisible()) await menu.click();
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByLabel("Token").fill(token);
  await page.getByLabel("Token").press("Enter");
  await page.locator("#who button", { hasText: "Sign out" }).waitFor({ state: "attached" });
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
async function launch(page, fields, group, boxes = []) {
  await open(page, "launch");
  for (const [label, text] of Object.entries(fields)) await page.getByLabel(label, { exact: true }).fill(text);
  for (const box of boxes) await page.getByLabel(box).check();
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
        const cut = await page.$$eval("td button, .chip", all => all.filter(one => one.scrollWidth > one.clientWidth ||
          (one.tagName === "BUTTON" && one.getBoundingClientRect().right > window.innerWidth)).map(one => one.textContent));
        assert.deepEqual(cut, [], `${what}: cut`);
        await picture(page, what);
        if (size !== "phone") await isAccessible(page, what);
      }
      await page.context().close();
    }
  },

  // No two labels overlap, none is cut by the picture's edge, and a long name is whole in its title. Where there is room,
  // no link runs through one, but for the hub, from which links lead everywhere.
  async labels() {
    const page = await viewer({ viewport: options.phone ? PHONE : options.nodes === 30 ? DESK : LAPTOP });
    const found = await page.$$eval("#picture text", all =>
      all.filter(one => getComputedStyle(one).display !== "none").map(one => {
        const { x, y, width, height } = one.getBBox();
        const corners = [[x, y], [x + width, y], [x + width, y + height], [x, y + height]];
        const onScreen = corners.map(([a, b]) => new DOMPoint(a, b).matrixTransform(one.getScreenCTM()));
        return {
          text: one.textContent.trim(),
          title: one.parentNode.querySelector("title").textContent,
          corners: onScreen.map(point => [point.x, point.y]),
        };
      }),
    );
    if (options.phone) {
      const named = await page.locator("#picture g[role=button]:not(.leaf)").count();
      assert.ok(found.length >= Math.min(named, options.nodes) - (options.nodes === 30 ? 3 : 0), `${found.length} names`);
    } else assert.equal(found.length, Math.min(options.nodes, options.nodes < 60 ? options.nodes : 10));
    const lines = await page.$$eval("#picture line", all => all.map(one => {
      const at = (x, y) => new DOMPoint(one.getAttribute(x), one.getAttribute(y)).matrixTransform(one.getScreenCTM());
      const [[a, b], [c, d]] = [at("x1", "y1"), at("x2", "y2")].map(({ x, y }) => [x, y]);
      // A box as well, which is hardly as thick as a line is.
      const [right, below] = [(b - d) / 1_000, (c - a) / 1_000];
      return [[a, b], [c, d], [c + right, d + below], [a + right, b + below]];
    }));
    const edge = await page.locator("#picture").boundingBox();
    // Whether a line runs between two boxes that may be turned: one along a side of either of them.
    const isBetween = (one, other) =>
      [one, one, other, other].some((corners, at) => {
        const [[a, b], [c, d]] = [corners[at % 2], corners[(at % 2) + 1]];
        const [p, q] = [one, other].map(all => all.map(([x, y]) => (c - a) * y - (d - b) * x));
        return Math.max(...p) <= Math.min(...q) || Math.max(...q) <= Math.min(...p);
      });
    found.forEach((one, at) => {
      assert.match(one.text, options.nodes < 60 ? /^execution-node-\d{3}$/ : /^execution-node-\d{3}( \d+ nodes(, \d wrong)?)?$/);
      assert.match(one.title, /^execution-node-\d{3}\.eu-west-1\.example\.org: /);
      assert.notDeepEqual(one.corners[0], one.corners[2], `${one.text} is to be seen`);
      for (const [x, y] of one.corners) {
        const isInside = x >= edge.x && x <= edge.x + edge.width && y >= edge.y && y <= edge.y + edge.height;
        assert.ok(isInside, `${one.text} is cut off`);
      }
      const isCrossed = lines.some(line => !isBetween(one.corners, line));
      if (options.nodes !== 30 && !options.phone && at > 0 && !one.text.includes("-000"))
        assert.ok(!isCrossed, `a link runs through ${one.text}`);
      for (const other of found.slice(at + 1)) {
        assert.ok(isBetween(one.corners, other.corners), `${one.title} and ${other.title} overlap`);
      }
    });
  },

  // Leaves of a large mesh are folded into their hop with what is wrong among them. It is the same picture for all.
  async picture() {
    const [page, other] = [await viewer({ viewport: LAPTOP }), await viewer({ viewport: LAPTOP })];
    const nodes = () => page.locator("#picture g[role=button]").count();
    assert.equal(await nodes(), 10);
    await picture(page, "folded");
    const before = await places(page);
    assert.deepEqual(await places(other), before);
    const hop = page.locator("#picture g[data-name^='execution-node-009']");
    assert.match(await hop.locator("text").textContent(), /2\d nodes, \d wrong$/);
    await hop.locator("path").click();
    await until("the leaves", async () => (await nodes()) > 30);
    await page.getByRole("heading", { name: "execution-node-009" }).waitFor();
    const [box, panel] = [await page.locator("#picture").boundingBox(), await page.locator("#panel").boundingBox()];
    assert.ok(box.x + box.width <= panel.x, "the panel stands beside the picture");
    await picture(page, "unfolded");
    await hop.locator("path").click();
    await until("the fold", async () => (await nodes()) < 12);
    await page.locator("#panel").getByRole("button", { name: "Close" }).click();
    const scale = async () => Number((await hop.getAttribute("transform")).match(/scale\((.*)\)/)[1]);
    const whole = await scale();
    await page.getByRole("button", { name: "Zoom in" }).click();
    assert.ok((await scale()) < whole);
    await page.mouse.move(box.x + 300, box.y + 300);
    await page.mouse.wheel(0, -100);
    await until("the wheel", async () => (await scale()) < whole / 1.5);
    const at = async () => (await hop.boundingBox()).x;
    const from = await at();
    await page.mouse.down();
    await page.mouse.move(box.x + 340, box.y + 300, { steps: 4 });
    await page.mouse.up();
    assert.ok(Math.abs((await at()) - from - 40) < 5, "it follows the mouse");
    await page.getByRole("button", { name: "Fit" }).click();
    assert.equal(await scale(), whole);
    await page.getByRole("button", { name: "Unfold all" }).click();
    await until("all", async () => (await nodes()) === options.nodes);
    await picture(page, "all");
    await page.reload();
    await settled(page);
    assert.deepEqual(await places(page), before);
  },

  // A thousand nodes, all of them unfolded: the median of five drawings, in milliseconds.
  async drawing() {
    const page = await viewer({ viewport: LAPTOP });
    const press = page.locator("button", { hasText: /^(Unf|F)old all$/ });
    const times = [];
    for (let round = 0; round < 5; round += 1) {
      await press.click();
      times.push(await press.evaluate(button => {
        button.click();
        const begun = performance.now();
        button.click();
        return performance.now() - begun;
      }));
      await press.click();
    }
    const [median] = times.sort((a, b) => a - b).slice(2);
    process.stdout.write(`${median}`);
    assert.ok(median < 500, `${times}`);
  },

  // Links come and go, and a node as well: nobody else moves, and who has the focus keeps it.
  async flapping() {
    const page = await viewer({ token: "read" });
    const before = await places(page);
    await page.locator("#picture g[tabindex='0']").focus();
    const holder = await focused(page);
    const lines = () => page.locator("#picture line:not(.broken)").count();
    const all = await lines();
    for (const ends of [
      [0, 4],
      [1, 2],
      [3, 11],
    ]) {
      await happen("cut", ...ends);
      await until("the link to go", async () => (await lines()) === all - 1);
      assert.match(await page.locator("#picture line.broken title").innerHTML(), /broken since /);
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
    assert.deepEqual(await places(page), { ...others, newcomer });
  },

  // No mouse: every view, every node, a search, a change.
  async keyboard() {
    const page = await viewer({ token: "admin" });
    await page.reload();
    await settled(page);
    await page.keyboard.press("Tab");
    assert.equal(await focused(page), "Skip to the view");
    for (const view of ["Overview", "Mesh", "Links", "Nodes", "Jobs", "Saved", "Launch", "Doctor"]) {
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
    await page.locator("#panel").getByRole("link", { name: "All of these" }).waitFor();
    await page.keyboard.press("Escape");
    await until(
      "the focus on the node",
      async () => (await focused(page)) === "node execution-node-017.eu-west-1.example.org",
    );
    await page.getByRole("button", { name: "Unfold all" }).click();
    await page.locator("#picture g[tabindex='0']").focus();
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
    const [before, lines] = [await places(mesh), await mesh.locator("#picture line:not(.broken)").count()];
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
    await until("the state of now", async () => (await mesh.locator("#picture line:not(.broken)").count()) === lines - 1);
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
    await page.locator(".facts a").first().focus();
    const link = await focused(page);
    await happen("end", options.job);
    await page.locator("h2 .state", { hasText: "successful" }).waitFor();
    await page.getByText("This is all.").waitFor();
    assert.equal(await focused(page), link);
  },

  // Where no events can be had the page looks by itself, ever more rarely.
  async refused() {
    await happen("fill");
    const page = await viewer({ token: "read" });
    let asked = 0;
    page.on("request", request => { asked += request.url().endsWith("events"); });
    const lines = () => page.locator("#picture line:not(.broken)").count();
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

  // Hosts that ask are let in after a look at the fingerprint, or not; who is no administrator sees nothing of them.
  async enrolment() {
    const page = await viewer({ token: "admin", route: "nodes" });
    const row = fingerprint => page.locator("tr", { hasText: fingerprint });
    const [first, second] = ["A1B2-C3D4-E5F6-G7H8-J9K0", "Z1Y2-X3W4-V5T6-S7R8-Q9P0"];
    const answers = [];
    page.on("dialog", async dialog => {
      assert.match(dialog.message(), new RegExp(first));
      await (answers.shift() ? dialog.accept() : dialog.dismiss());
    });
    const press = (fingerprint, name) => row(fingerprint).getByRole("button", { name }).click();
    await page.getByRole("cell", { name: "1 of 5", exact: true }).waitFor();
    const ends = at => page.locator("tr", { has: page.locator(`[title^="execution-node-00${at}"]`) }).locator("td .state");
    assert.match(await ends(1).last().getAttribute("class"), /warn/);
    assert.match(await ends(7).last().getAttribute("class"), /ok/);
    answers.push(false);
    await press(first, "Approve");
    await press(second, "Reject");
    await until("the rejection", async () => (await said(page)).endsWith("rejected"));
    await row(second).waitFor({ state: "detached" });
    assert.equal(await row(first).count(), 1, "it was not confirmed");
    answers.push(true);
    await press(first, "Approve");
    await until("the approval", async () => (await said(page)).includes("approved"));
    await row(first).waitFor({ state: "detached" });
    assert.equal(answers.length, 0);
    const other = await viewer({ token: "operate", route: "nodes" });
    await other.locator("tbody tr").first().waitFor();
    for (const text of ["Open invitations", "Certificate until"])
      assert.equal(await other.getByText(text, { exact: true }).locator("visible=true").count(), 0, text);
  },

  // What is wrong stands above every view as numbers, and leads to those that are meant.
  async numbers() {
    const page = await viewer({ token: "read", viewport: LAPTOP, route: "doctor" });
    const number = text => page.locator("#numbers a", { hasText: text });
    await number("30 nodes in reach").waitFor();
    await number("2 links lossy").waitFor();
    await happen("cut", 3, 29);
    await open(page, "overview");
    await number("1 of 30 nodes out of reach").waitFor();
    await picture(page, "numbers");
    await number(/^\d+ of \d+ jobs failed in 24 h$/).waitFor();
    assert.match(await page.locator(".outage").innerText(), /^execution-node-0\d\d\S* is out of reach since today \d\d:\d\d$/);
    await number("1 link broken").click();
    const rows = page.locator("tbody tr");
    await until("the broken link", async () => (await rows.count()) === 1);
    assert.match(await rows.innerText(), /broken/);
    await number("out of reach").click();
    await until("the lost node", async () => /out of reach/.test(await rows.first().innerText()));
    await until("the one node", async () => (await rows.count()) === 1);
    assert.match(await rows.innerText(), /execution-node-0\d\d.*out of reach/s);
    await number("lossy").click();
    await until("the two links", async () => (await rows.count()) === 2);
    await number("failed in 24 h").click();
    await until("the jobs", async () => (await rows.count()) > 5);
    assert.match(page.url(), /day=true&state=failed&state=error/);
    await number("1 waiting, the longest for").click();
    await until("the job that waits", async () => (await rows.count()) === 1);
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
    const chip = name => page.getByLabel(new RegExp(`^${name} \\d+$`));
    await chip("failed").focus();
    await page.keyboard.press("Space");
    await until("the filter", async () => page.url().includes("state=failed"));
    assert.equal(await page.evaluate(() => document.activeElement.value), "failed", "a filter keeps the focus");
    await page.getByLabel("Search").fill("ITE-2");
    const cells = column => page.locator(`tbody td:nth-child(${column})`).allInnerTexts();
    await until("the filter", async () =>
      [...(await cells(2)), ...(await cells(3))].every(text => /^site-2.yml|^failed$/.test(text)),
    );
    assert.equal(await rows.count(), 50);
    await page.getByRole("link", { name: "Older" }).click();
    await until(
      "older ones of these",
      async () => page.url().includes("before=") && page.url().includes("state=failed"),
    );
    assert.ok(await page.getByText("2 hosts failed").first().isVisible(), "why it failed stands below the name");
    await open(page, "jobs?node=nowhere");
    await page.getByText("No job is like that.").waitFor();
    await page.getByRole("link", { name: "node nowhere ×" }).click();
    await until("all jobs", async () => (await first()) === "100000");
    // A search looks at so many jobs at a time, and says so.
    await page.getByLabel("Search").fill("nothing like that");
    await page.getByText("0 jobs found down to number").waitFor();
    await page.getByRole("link", { name: "Search older jobs" }).click();
    await until("older ones", async () => page.url().includes("before="));
    const elements = await page.evaluate(() => document.querySelectorAll("*").length);
    assert.ok(elements < 1_500, `${elements} elements`);
  },

  // A saved job is found by its name, started with a value for each kind of variable, and its schedule paused.
  async saved() {
    const page = await viewer({ token: "operate", viewport: options.phone ? PHONE : LAPTOP, route: "saved" });
    const label = name => page.getByLabel(name, { exact: true });
    const isFocused = one => until("the focus", () => one.evaluate(it => it === document.activeElement));
    await open(page, "saved");
    await page.locator(".error", { hasText: "Upper.yml: the name must be lower case" }).waitFor();
    await page.getByRole("row", { name: /backup-00001.*successful|backup-00001.*error/ }).waitFor();
    await page.getByRole("row", { name: /backup-00002.*paused/ }).waitFor();
    await label("Name begins with").fill("nothing");
    await page.getByText("There are none.").waitFor();
    await label("Name begins with").fill("Brok");
    const fault = page.locator("td .error", { hasText: "broken.yml:3: playbok" });
    await fault.waitFor();
    assert.match(page.url(), /#\/saved\?name=brok$/);
    await isFocused(label("Name begins with"));
    assert.equal(await page.locator("tbody tr").count(), 1);
    await isWithinScreen(page, "a fault");
    await page.getByRole("link", { name: "broken" }).click();
    await page.getByRole("heading", { name: "Saved job broken" }).waitFor();
    await page.locator("main .error", { hasText: "playbok" }).waitFor();
    assert.equal(await page.getByRole("button", { name: "Start" }).count(), 0, "it has never been right");
    await open(page, "saved/deploy");
    await isAccessible(page, "the form");
    await picture(page, `saved-form-${options.phone ? "phone" : "laptop"}`);
    const start = page.getByRole("button", { name: "Start" });
    await start.click();
    assert.equal(await page.evaluate(() => document.activeElement.name), "version", "it must be given");
    const values = [["version", "main"], ["batch", "3"], ["share", "0.5"], ["password", "s3cr3t of start"], ["empty", ""]];
    for (const [name, text] of values) await label(name).fill(text);
    await page.getByRole("combobox", { name: "region" }).selectOption("west");
    assert.deepEqual([await page.getByRole("combobox", { name: "target" }).inputValue(), await label("notes").inputValue()], ["test", "one\ntwo"]);
    await page.getByLabel(/^dry/).uncheck();
    await label("hosts").fill('{"a": [1]}');
    assert.equal(await label("password").getAttribute("type"), "password");
    await start.click();
    await page.locator("form .error", { hasText: "version: it does not match" }).waitFor();
    await isFocused(label("version"));
    const [error, main] = [await page.locator("main form .error").boundingBox(), await page.locator("main").boundingBox()];
    assert.ok(error.y >= main.y && error.y < main.y + main.height / 2, "the error is to be seen");
    await picture(page, `saved-refused-${options.phone ? "phone" : "laptop"}`);
    // What was typed outlives a look at the node.
    await happen("tell", "job.state", "x");
    await label("version").fill("v1.2");
    const form = await page.locator("form.launch").elementHandle();
    await label("version").press("Enter");
    await page.getByRole("heading", { name: "Job 101" }).waitFor();
    const kept = await page.evaluate(one => [one.querySelector("[type=password]").value, document.body.textContent,
      location.href, JSON.stringify([localStorage, sessionStorage, history.state])], form);
    assert.equal(kept.some(text => text.includes("s3cr3t")), false, "the secret is nowhere");
    await page.locator(".facts").getByRole("link", { name: "deploy" }).click();
    await page.getByRole("heading", { name: "Saved job deploy" }).waitFor();
    await page.getByRole("cell", { name: "101", exact: true }).waitFor();
    await page.getByRole("link", { name: "All of these" }).click();
    await until("its jobs", async () => (await page.locator("tbody tr").count()) === 1);
    await page.getByRole("link", { name: "saved job deploy ×" }).waitFor();
    await open(page, "saved/backup-00001");
    await page.getByText("the job before has not ended").waitFor();
    assert.equal(await page.getByRole("button", { name: /schedule/ }).count(), 0, "an operator pauses none");
    await page.context().close();
    const admin = await viewer({ token: "admin", viewport: options.phone ? PHONE : LAPTOP, route: "saved" });
    await open(admin, "saved/backup-00001");
    await admin.getByText("the job before has not ended").waitFor();
    await picture(admin, `saved-schedule-${options.phone ? "phone" : "laptop"}`);
    await admin.getByRole("button", { name: "Pause the schedule" }).focus();
    await admin.keyboard.press("Enter");
    await isFocused(admin.getByRole("button", { name: "Resume the schedule" }));
    await admin.locator("dd", { hasText: /^paused$/ }).waitFor();
    await admin.keyboard.press("Enter");
    await admin.getByRole("button", { name: "Pause the schedule" }).waitFor();
    await until("what was done", async () => (await said(admin)).endsWith("is resumed"));
    await admin.context().close();
    const reader = await viewer({ token: "read", route: "saved/deploy" });
    await open(reader, "saved/deploy");
    await reader.getByText("Rolls out a version of the site").waitFor();
    assert.equal(await reader.locator("main :is(button, input, select, textarea):visible").count(), 0, "a reader starts nothing");
    complaints.splice(0, complaints.length, ...complaints.filter(text => !text.includes("422")));
  },

  // However many saved jobs there are, the page has some of them, asks for as many jobs, and finds any by its name.
  async many_saved() {
    const page = await viewer({ token: "read", viewport: LAPTOP });
    const asked = [];
    page.on("request", request => asked.push(request.url()));
    await open(page, "saved");
    const rows = page.locator("tbody tr");
    const first = () => rows.first().getByRole("link").first().innerText();
    assert.deepEqual([await rows.count(), await first()], [25, "backup-00000"]);
    assert.ok(asked.filter(url => url.includes("/jobs?")).length === 25 && asked.length < 40, `${asked.length} requests`);
    await page.getByRole("link", { name: "More" }).focus();
    await page.keyboard.press("Enter");
    await until("more of them", async () => (await first()) === "backup-00025");
    assert.ok((await rows.first().boundingBox()).y > 0, "they begin at the top");
    assert.equal(await rows.count(), 25);
    await page.getByRole("link", { name: "First" }).click();
    await until("the first ones", async () => (await first()) === "backup-00000");
    await page.getByLabel("Name begins with").fill("backup-1234");
    await until("the ten", async () => (await first()) === "backup-12340" && (await rows.count()) === 10);
    assert.equal(await page.getByRole("link", { name: "More" }).count(), 0);
    await page.getByLabel("Name begins with").fill("dep");
    await until("the one", async () => (await first()) === "deploy");
    await page.reload();
    await settled(page);
    assert.equal(await first(), "deploy");
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

  // A failed job says first what failed, leads to each place in its output, and has the end of that in the window.
  async failure() {
    await happen("fail", options.job);
    for (const viewport of [LAPTOP, PHONE]) {
      const page = await viewer({ token: "read", route: `jobs/${options.job}`, viewport });
      await page.getByText("This is all.").waitFor();
      const line = text => page.locator(".screen .line", { hasText: text });
      const isSeen = async one => {
        const [box, edge] = [await one.boundingBox(), await page.locator(".screen").boundingBox()];
        return box.y >= edge.y && box.y + box.height <= edge.y + edge.height && edge.y + edge.height <= viewport.height;
      };
      await picture(page, `failure-${viewport.width}`);
      assert.ok(await isSeen(line("web2 : ok=1 failed=1")), `the recap is within ${viewport.width}`);
      const box = page.getByRole("region", { name: "Why it failed" });
      const last = await box.getByText("on db2: no route").boundingBox();
      assert.ok(last.y + last.height < (await page.locator(".screen").boundingBox()).y, "what failed stands above the output");
      assert.match(await box.innerText(), /^3 of 8 hosts failed: web2, web5: Configure the application server: .*db2 unreachable/);
      await box.getByRole("button", { name: "Configure the application server" }).click();
      assert.ok(await isSeen(line("fatal: [web2]")), "the way to the place");
      assert.equal(await page.evaluate(() => document.activeElement.className), "screen");
      const next = page.getByRole("button", { name: "Next error" });
      for (const [text, words] of [["fatal: [web5]", "2 of 3 errors"], ["fatal: [db2]", "3 of 3 errors"], ["fatal: [web2]", "1 of 3 errors"]]) {
        await next.click();
        assert.ok(await isSeen(line(text)), text);
        await page.getByText(words, { exact: true }).waitFor();
      }
      await picture(page, `failure-place-${viewport.width}`);
      await isAccessible(page, "a failed job");
      const facts = await page.locator(".facts").boundingBox();
      const heading = await page.locator(".title").boundingBox();
      assert.ok(facts.y + facts.height - heading.y < (viewport === LAPTOP ? 80 : 170), "title and facts are three lines");
      assert.match(await page.locator(".facts").innerText(), /^1 min 15 s, (today|yesterday) \d\d:\d\d · on /);
      // A long name is cut in the title, and whole for whoever has no mouse.
      const whole = page.locator("dd", { hasText: options.job_name });
      assert.ok(!(await whole.isVisible()));
      await page.getByText("All facts").click();
      assert.equal(await whole.evaluate(one => one.scrollWidth > one.clientWidth), false);
      await page.context().close();
    }
    // Without that box the output itself is opened at the failure.
    await happen("print", options.job - 1, "ok", 300);
    await happen("print", options.job - 1, "\u001b[0;31mfatal: [db.example]: FAILED! => {}\u001b[0m");
    await happen("print", options.job - 1, "ok", 300);
    await happen("end", options.job - 1, "failed");
    const page = await viewer({ token: "read", route: `jobs/${options.job - 1}` });
    await page.getByText("1 of 1 error", { exact: true }).waitFor();
    assert.ok(!(await page.getByLabel("Keep the end in sight").isChecked()));
    await open(page, "jobs/9999999");
    await page.getByText("there is no job 9999999").waitFor();
    assert.equal(await page.locator(".screen:visible, button:visible", { hasNotText: "Sign out" }).count(), 0);
    complaints.splice(0, complaints.length, ...complaints.filter(text => !text.includes("404")));
  },

  // Another node is examined by way of this one: chosen in the view, or come to from its panel.
  async doctor() {
    const page = await viewer({ token: "read", viewport: LAPTOP, route: "doctor" });
    await page.getByText("3 findings on execution-node-000").waitFor();
    const node = number => `execution-node-0${number}.eu-west-1.example.org`;
    await page.getByLabel("Node").fill(node("07"));
    await page.keyboard.press("Enter");
    await page.getByText(`1 finding on ${node("07")}`).waitFor();
    await page.getByText(`Remedy: ${node("07")} says: systemctl`).waitFor();
    await open(page, `mesh/${node("12")}`);
    await page.getByRole("link", { name: "What is wrong with it" }).click();
    await page.getByText(`1 finding on ${node("12")}`).waitFor();
    assert.equal(await page.getByLabel("Node").inputValue(), node("12"));
    await isAccessible(page, "doctor");
    await picture(page, "doctor");
    await page.getByLabel("Node").fill("nowhere");
    await page.getByRole("button", { name: "Examine" }).click();
    await page.locator("main .error", { hasText: "nowhere was not examined: no route" }).waitFor();
    assert.equal(await page.getByText(/finding|being examined/).count(), 0);
    complaints.splice(0, complaints.length, ...complaints.filter(text => !text.includes("404")));
  },

  // Tasks with their counts, while they run; a task opens to its hosts, and a host to its result, by keyboard alone.
  async tasks() {
    const page = await viewer({ token: "read", route: `jobs/${options.job}`, viewport: LAPTOP });
    await page.locator(".screen .line").first().waitFor();
    const asked = [];
    page.on("request", request => request.url().includes("/output") && asked.push(request));
    await happen("play", options.job, 8, 4);
    await page.getByRole("button", { name: "Tasks", exact: true }).click();
    const rows = page.locator(".tasks ol > li:not(.play)");
    const row = text => rows.filter({ hasText: text });
    await until("the tasks", async () => (await rows.count()) === 4);
    assert.equal(asked.length, 1);
    await happen("play", options.job, 8, 6, 4);
    await until("those that came later", async () => (await rows.count()) === 6);
    assert.equal(asked.length, 1, "it goes on with the same answer");
    const told = async text => (await row(text).locator("button .counts").innerText()).replace(/\s+/g, " ").trim();
    for (const [task, counts] of [["Step 0", "8 ok"], ["Step 1", "8 changed"], ["Step 2", "1 ignored 6 ok 1 skipped"],
      ["Step 3", "1 unreachable 7 ok"], ["Step 4", "1 failed 7 ok"]]) assert.equal(await told(task), counts);
    assert.equal(await page.locator(".tasks .play").innerText(), "Play Web servers");
    const hosts = page.locator(".hosts .counts");
    const barTells = words => hosts.filter({ hasText: words }).waitFor();
    await barTells(/^8 hosts: 1 failed 1 unreachable 6 changed$/);
    const widths = await page.locator(".hosts rect").evaluateAll(all => all.map(one => parseFloat(one.getAttribute("width"))));
    assert.deepEqual(widths, [12.5, 12.5, 75]);
    await row("Step 4").locator("button").first().focus();
    await page.keyboard.press("Enter");
    await page.keyboard.press("Tab");
    assert.match(await focused(page), /^web4 failed$/, "what failed stands first");
    await page.keyboard.press("Enter");
    const result = page.locator(".result");
    await result.getByText('"task": 4').waitFor();
    const strange = JSON.parse(await result.evaluate(one => one.textContent.replaceAll("\ufffd", "?")));
    assert.ok(strange.msg.startsWith("<img src=x") && strange.host === 4);
    assert.equal(await page.locator("main img").count(), 0);
    assert.match(await focused(page), /^web4 failed$/, "the focus stays");
    await isAccessible(page, "tasks");
    await picture(page, "tasks");
    await row("Step 4").getByRole("button", { name: "web5 ok" }).click();
    await result.getByText("the output has been hidden").waitFor();
    assert.equal(await result.count(), 1);
    await page.getByLabel("Only tasks that failed").check();
    assert.equal(await rows.locator("visible=true").count(), 2);
    // One that was rescued, as the recap alone tells.
    await happen("recap", options.job, 8, "web3");
    await barTells(/^8 hosts: 1 unreachable 7 ok$/);
    // While nobody looks, nothing is read; what came meanwhile is there when somebody does.
    const failed = [];
    page.on("requestfailed", request => failed.push(request.url()));
    await page.getByRole("button", { name: "Output", exact: true }).click();
    await until("the answer to end", () => failed.some(url => url.includes("output?from=0")));
    await happen("play", options.job, 8, 7, 6);
    await page.getByRole("button", { name: "Tasks", exact: true }).click();
    await page.getByLabel("Only tasks that failed").uncheck();
    await until("the task", async () => (await rows.count()) === 7);
    assert.match(asked.at(-1).url(), /from=[1-9]\d+/, "no byte is read twice");
    // Another attempt begins anew.
    await happen("play", options.job, 8, 1);
    await until("the last attempt", async () => (await rows.count()) === 1);
    await page.context().close();
    const phone = await viewer({ token: "read", route: `jobs/${options.job}`, viewport: PHONE });
    await phone.getByRole("button", { name: "Tasks", exact: true }).click();
    await until("the task", async () => (await phone.locator(".tasks li.play").count()) === 1);
    await isWithinScreen(phone, "tasks");
    await isAccessible(phone, "tasks on a phone");
    await picture(phone, "tasks-phone");
  },

  // A playbook of 500 tasks on 200 hosts: the browser keeps where each result is, and stays quick.
  async many_tasks() {
    const page = await viewer({ token: "read", route: `jobs/${options.job}`, viewport: LAPTOP });
    await page.locator(".screen .line").first().waitFor();
    await happen("play", options.job, 200, 500, 0, options.letters);
    await page.evaluate(() => {
      globalThis.slowest = 0;
      let last = performance.now();
      setInterval(() => {
        globalThis.slowest = Math.max(globalThis.slowest, performance.now() - last);
        last = performance.now();
      }, 10);
    });
    const begun = performance.now();
    await page.getByRole("button", { name: "Tasks", exact: true }).click();
    const rows = page.locator(".tasks ol > li:not(.play)");
    await until("all tasks", async () => (await rows.count()) === 500 && /^ 200 ok$/.test(await rows.last().locator(".counts").textContent()));
    const read = performance.now() - begun;
    await rows.nth(4).getByRole("button").first().click();
    await until("the hosts", async () => (await rows.nth(4).locator("ul li").count()) === 200);
    await rows.nth(4).getByRole("button", { name: "web4 failed" }).click();
    await page.locator(".result").getByText('"task": 4').waitFor();
    await rows.last().getByRole("button").first().click();
    await rows.last().getByRole("button", { name: "web199 ok" }).click();
    await page.locator(".result").getByText('"host": 199').waitFor();
    const told = await page.evaluate(() => ({
      elements: document.querySelectorAll("*").length, slowest: globalThis.slowest,
      heap: globalThis.performance.memory.usedJSHeapSize / 2 ** 20,
    }));
    assert.ok(told.elements < 20_000 && told.slowest < 3_000, JSON.stringify(told));
    process.stdout.write(JSON.stringify({ read, ...told }));
  },

  // What a level may see, and the way to another one.
  async sessions() {
    const page = await viewer();
    const views = () => page.locator("header nav a:visible").allInnerTexts();
    assert.deepEqual(await views(), ["Overview", "Mesh", "Links", "Nodes", "Jobs"]);
    await open(page, `jobs/${options.job}`);
    await page.getByText("Sign in with a token that may see this.").waitFor();
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByLabel("Token").fill("wrong");
    await page.getByLabel("Token").press("Enter");
    await page.getByText("there is no such token").waitFor();
    await picture(page, "sign-in");
    await isAccessible(page, "the form");
    await page.getByLabel("Token").fill("read");
    await page.getByLabel("Token").press("Enter");
    await page.locator(".screen .line").first().waitFor();
    assert.deepEqual(await views(), ["Overview", "Mesh", "Links", "Nodes", "Jobs", "Saved", "Doctor"]);
    assert.equal(await page.getByRole("button", { name: "Cancel" }).count(), 0);
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByText("You are signed out.").waitFor();
    assert.equal(await page.locator(".screen").count(), 0);
    complaints.splice(0, complaints.length, ...complaints.filter(text => !text.includes("401")));
  },

  // The form of a launch. What it sends is looked at by whoever runs this.
  async launch() {
    const page = await viewer({ token: "operate" });
    await launch(page, options.fields, options.group, ["Check only (-C)", "Show differences (-D)"]);
    // The next one begins with what was launched, without variables and secrets.
    await open(page, "launch");
    await page.reload();
    await settled(page);
    const value = label => page.getByLabel(label, { exact: true }).inputValue();
    for (const [label, text] of Object.entries(options.fields)) {
      const isKept = !["Variables", "Vault password"].includes(label);
      await until(label, async () => (await value(label)) === (isKept ? text : ""));
    }
    assert.ok(await page.getByLabel("Check only (-C)").isChecked());
    assert.equal(await page.getByLabel("Instance group").inputValue(), options.group);
    const all = await page.evaluate(() => JSON.stringify(localStorage));
    assert.ok(all.includes("site.yml") && !all.includes("hosts:"), "an inventory is kept by its tab alone");
    for (const secret of ["Variables", "Vault password"]) assert.ok(!all.includes(options.fields[secret].trim()), secret);
    // A job that was launched is run again with changes.
    await open(page, `jobs/${options.job - 40}`);
    await page.getByRole("link", { name: "Run again with changes" }).click();
    await until("its project", async () => (await value("Project (git)")) === "https://git.example/other.git");
    assert.deepEqual([await value("Playbook"), await value("Inventory")], ["site-4.yml", ""]);
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
    await page.locator("tr", { hasText: "localhost" }).getByText(/^(ok|changed)$/).waitFor();
    const first = await page.evaluate(() => location.hash);
    await page.locator(".hosts", { hasText: /^1 host: 1 (ok|changed)$/ }).waitFor();
    await page.getByRole("button", { name: "Tasks", exact: true }).click();
    await page.locator(".tasks button", { hasText: "1 changed" }).last().click();
    await page.locator(".tasks").getByRole("button", { name: "localhost changed" }).click();
    await page.locator(".result").getByText(`"stdout": "${options.printed.replace("it said ", "")}"`).waitFor();
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
    // A saved job is refused, started, and its schedule paused.
    await open(page, "saved/greet");
    await page.getByLabel("word").fill("HELLO");
    await page.getByRole("button", { name: "Start" }).click();
    await page.locator("main form .error", { hasText: "word: it does not match [a-z]+" }).waitFor();
    await page.getByLabel("word").fill("hello");
    await page.getByRole("button", { name: "Start" }).click();
    await page.locator(".screen").getByText('"msg": "hello"').waitFor({ timeout: 60_000 });
    await page.locator("h2 .state", { hasText: "successful" }).waitFor();
    await page.locator(".facts").getByRole("link", { name: "greet" }).click();
    await page.getByRole("button", { name: "Pause the schedule" }).click();
    await page.getByRole("button", { name: "Resume the schedule" }).waitFor();
    await open(page, "saved");
    await page.getByRole("row", { name: /greet.*paused.*successful/ }).waitFor();
    await open(page, "doctor");
    await page.getByText("on control.").or(page.getByText("Nothing is wrong with control.")).first().waitFor();
    await happen("stop");
    await page.locator("#banner", { hasText: "does not answer" }).waitFor({ timeout: 40_000 });
    await happen("start");
    await page.getByText("You are signed out.").waitFor({ timeout: 40_000 });
    await signIn(page, "t-read");
    await open(page, first.slice(2));
    await page.locator(".screen").getByText(options.printed).first().waitFor();
    assert.equal(await page.getByRole("button", { name: "Run again" }).count(), 0);
    complaints.splice(0, complaints.length, ...complaints.filter(text => !/ERR_|401|400/.test(text)));
  },

  // What the page makes of a runner's stream, in pieces of a length.
  async playbook() {
    const { Playbook } = await import("../../src/http/page/output.js");
    const [playbook, bytes] = [new Playbook(), readFileSync(options.stream)];
    for (let at = 0; at < bytes.length; at += options.length) {
      for (const [place, text] of playbook.push(bytes.subarray(at, at + options.length))) {
        process.stdout.write(options.places ? `${place} ${text}` : text);
      }
    }
  },
};

try {
  if (name !== "playbook")
    browser = await chromium.launch({
      executablePath: options.chromium ?? "/usr/bin/chromium",
      args: ["--no-sandbox"],
    });
  await checks[name]();
  assert.deepEqual(complaints, []);
} finally {
  await browser?.close();
}
