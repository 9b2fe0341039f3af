// The page of a server that other machines may use too: LIVE_URL has the token.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, PATIENCE } from "./canvas.mjs";

let browser;
before(async () => { browser = await launch(); });
after(() => browser?.close());

test("with the token of the address one walks, and saves what was walked", { timeout: 2 * PATIENCE }, async () => {
  const context = await browser.newContext(), page = await context.newPage(), refused = [];
  page.on("response", (answer) => { if (answer.status() >= 400) refused.push(answer.url()); });
  await page.goto(process.env.LIVE_URL);
  await page.locator(".pictures button[aria-pressed=true]").waitFor();
  await page.click("[data-command=go]");
  await page.locator(".stage[data-seen]").waitFor();
  const saved = await page.evaluate(async () => {
    const { href } = document.querySelector("[data-save=path]");
    const answer = await fetch(href.split("&token")[0]); // the cookie is enough
    return answer.status;
  });
  assert.equal(saved, 200);
  assert.deepEqual(refused, []);
});
