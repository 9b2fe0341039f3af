// Chooses the page's language: ?lang=, else the first of the browser's that the page speaks. A page to be translated is
// not painted before start.mjs has translated it. This is a classic script, because a module would run after the first
// paint; its name ends in .mjs, because ComfyUI would load a .js into its own page.

{
  const SPOKEN = [["en", /^en\b/i], ["ja", /^ja\b/i], ["zh-CN", /^zh(-(cn|sg|my|hans)\b.*)?$/i]];
  const nameOf = (tag) => SPOKEN.find(([, tags]) => tags.test(tag))?.[0];
  const wanted = [new URLSearchParams(location.search).get("lang"), ...navigator.languages ?? []];
  const page = document.documentElement;
  page.lang = wanted.map(nameOf).find(Boolean) ?? "en";
  page.toggleAttribute("data-untranslated", page.lang !== "en");
}
