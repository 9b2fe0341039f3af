// Chooses the page's language: ?lang=, else the first of the browser's that the page speaks. A page to be translated is
// not painted before start.mjs has translated it. Where start.mjs does not load, the page says why, in English. This is a classic script, because a module would run after the first
// paint; its name ends in .mjs, because ComfyUI would load a .js into its own page.

{
  const SPOKEN = [["en", /^en\b/i], ["ja", /^ja\b/i], ["zh-CN", /^zh(-(cn|sg|my|hans)\b.*)?$/i]];
  const nameOf = (tag) => SPOKEN.find(([, tags]) => tags.test(tag))?.[0];
  const wanted = [new URLSearchParams(location.search).get("lang"), ...navigator.languages ?? []];
  const page = document.documentElement;
  page.lang = wanted.map(nameOf).find(Boolean) ?? "en";
  page.toggleAttribute("data-untranslated", page.lang !== "en");
  addEventListener("error", ({ target }) => {
    const said = document.querySelector(".said"); // other scripts, such as an extension's, are none of the page's
    if (target.localName !== "script" || !target.getAttribute("src")?.startsWith("live/") || !said) return;
    page.removeAttribute("data-untranslated");
    said.textContent =
      `The page's scripts did not load. Behind a proxy, start live with --allow_origin ${location.origin}`;
  }, { capture: true });
}
