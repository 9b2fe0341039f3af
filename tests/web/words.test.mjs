// The texts of the page and of the canvas: each has its translation in each language, and a language has no other.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { createContext, runInContext } from "node:vm";
import { PRESETS } from "../../web/js/path/presets.js";
import { keyOf, words } from "../../web/live/words.mjs";

const WEB = new URL("../../web/", import.meta.url).pathname;
const LANGUAGES = ["ja", "zh"];
const FILES = readdirSync(WEB, { recursive: true }).map((name) => name.replaceAll("\\", "/"));
const PAGES = ["live/index.html", "js/editor.html"];
const SCRIPTS = FILES.filter((name) => /^(js|live)\/.*\.m?js$/.test(name));
const NAMED = Object.keys(PRESETS).map((name) => name.replaceAll("_", " "));
const VARIABLE = { "js/editor/presets.js": 1, "live/words.mjs": 1 }; // calls without a literal
const ALONE = /^(area|base|br|col|embed|hr|img|input|link|meta|path|source|track|wbr)$/; // elements that do not end
const LABELS = /\b(?:title|aria-label|placeholder)="([^"]*)"/g;
const read = (name) => readFileSync(WEB + name, "utf8");
const holes = (text) => [...text.matchAll(/\{\w+\}/g)].map(([hole]) => hole).sort();
const hasWord = (text) => /[A-Za-z]{2}/.test(text.replace(/^(\{0\} )?(fps|ms)$|\{\d+\}|&\w+;/g, ""));

/** The keys of an HTML file: its labels, and the texts of its elements. */
function keysOfPage(html) {
  const open = [{ childNodes: [] }], keys = [];
  for (const [, ends, name, inside = "", text] of html.matchAll(/<(\/?)([a-z][a-z0-9]*)([^>]*)>|([^<]+)/gi)) {
    if (text !== undefined) open.at(-1).childNodes.push({ nodeType: 3, data: text });
    else if (ends) {
      const { childNodes } = open.pop();
      if (name !== "kbd") keys.push(keyOf(childNodes));
    } else {
      const element = { nodeType: 1, childNodes: [] };
      keys.push(...[...inside.matchAll(LABELS)].map(([, label]) => label));
      open.at(-1).childNodes.push(element);
      if (!ALONE.test(name) && !inside.endsWith("/")) open.push(element);
    }
  }
  assert.equal(open.length, 1);
  return keys.filter(hasWord);
}

/** The keys of a script: the literals that `words` is called with. */
function keysOfScript(name) {
  const calls = [...read(name).matchAll(/(?<!function |[\w.])words\((?:\s*"((?:[^"\\]|\\.)*)"(?=\s*[,)]))?/g)];
  const keys = calls.map(([, key]) => key).filter((key) => key !== undefined);
  assert.equal(calls.length - keys.length, VARIABLE[name] ?? 0, `${name}: words() of a variable`);
  return keys;
}

const used = new Set([...PAGES.flatMap((name) => keysOfPage(read(name))), ...SCRIPTS.flatMap(keysOfScript), ...NAMED]);

for (const language of LANGUAGES) {
  const translations = JSON.parse(read(`live/words.${language}.json`));

  test(`${language}: no text lacks its translation, and none is left over`, () => {
    const file = `words.${language}.json`, known = Object.keys(translations);
    assert.deepEqual([...used].filter((key) => !translations[key]?.trim()), [], `write them into ${file}`);
    assert.deepEqual(known.filter((key) => !used.has(key)), [], `delete them in ${file}`);
  });

  test(`${language}: values and elements stand in each translation, and sentences are translated`, () => {
    for (const [key, text] of Object.entries(translations)) {
      assert.deepEqual(holes(text), holes(key), key);
      assert.notEqual(text, key);
    }
  });
}

test("what is shown goes through words()", () => {
  const shown = new RegExp([
    '(say|refuse|new Error)\\("\\w', "(say|refuse)\\(`\\w", '(tell|toast)\\(.*"[A-Z]',
    '(textContent|ariaLabel|ariaValueText) = "[A-Z]', '(title|alt): "[A-Z]',
  ].join("|"));
  for (const name of SCRIPTS) {
    const lines = read(name).split("\n").filter((line) => shown.test(line.replaceAll('words("', "words(")));
    assert.deepEqual(lines, [], name);
  }
});

test("a text without a translation stays as it is, with its values", () => {
  const values = { name: "{count}", count: 2 };
  assert.equal(words("{name} has {count} of {} and {other}", values), "{count} has 2 of {} and {other}");
});

test("the page takes the language of the address, else the first of the browser's that it speaks", () => {
  const chosen = (languages, search = "") => {
    const page = { toggleAttribute: (_, on) => { page.hidden = on; } };
    runInContext(read("live/language.mjs"), createContext({
      URLSearchParams, location: { search }, navigator: { languages }, document: { documentElement: page }, addEventListener() {},
    }));
    assert.equal(page.hidden, page.lang !== "en");
    return page.lang;
  };
  assert.equal(chosen(["ja-JP", "en"]), "ja");
  assert.equal(chosen(["en-GB", "ja"]), "en");
  assert.equal(chosen(["fr", "zh-Hans-CN"]), "zh-CN");
  assert.equal(chosen(["zh-TW", "en"]), "en");
  assert.equal(chosen(["fr"]), "en");
  assert.equal(chosen(undefined), "en");
  assert.equal(chosen(["en"], "?token=x&lang=zh"), "zh-CN");
  assert.equal(chosen(["ja"], "?lang=en"), "en");
});
