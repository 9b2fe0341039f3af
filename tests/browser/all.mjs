// TESTS='["editor.test.mjs", ...]' node --test all.mjs: the tests of these files in one browser, a suite for each file
import { describe } from "node:test";
import "./editor.mjs"; // here, not in a suite: it closes the browser after all of them

for (const name of JSON.parse(process.env.TESTS)) describe(name, async () => { await import(`./${name}`); });
