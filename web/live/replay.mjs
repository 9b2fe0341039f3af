// Walks that the server has kept: each is a link by which it is made again, to the bit.

const MOST = 30; // that are listed

/** Lists them, where the server can replay; shows nothing where it cannot.
 * @param {HTMLElement} root  a details with a list @param {(name: string, prompt: string) => void} replay */
export async function offerWalks(root, replay) {
  const answer = await fetch(`walks${location.search}`).catch(() => null);
  const walks = answer?.ok ? await answer.json().catch(() => []) : [];
  const links = walks.slice(0, MOST).map(({ name, seconds, prompt }) => link(name, seconds, prompt, replay));
  root.querySelector("ul").replaceChildren(...links);
  root.hidden = !links.length;
  const wanted = new URLSearchParams(location.search).get("replay");
  return walks.find(({ name }) => name === wanted) ?? null;
}

function link(name, seconds, prompt, replay) {
  const query = new URLSearchParams(location.search), item = document.createElement("li");
  query.set("replay", name);
  const anchor = Object.assign(document.createElement("a"), { href: `?${query}`, textContent: `${name}, ${length(seconds)}` });
  anchor.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return; // another tab
    event.preventDefault();
    replay(name, prompt);
  });
  item.append(anchor, ` ${prompt}`);
  return item;
}

const length = (seconds) => `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
