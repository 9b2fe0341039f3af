import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { Maze } from "../../web/live/maze.mjs";

const SIZE = { width: 64, height: 36 }, LENS = [38.8191, 37.8486, 32, 18];
// x, z, yaw and pitch of the walk's camera, and what the maze's own renderer (tools/toy/render.py) sees of the crate of
// the next room but one in 64x36 pixels: how many, and where their middle is.
const SEEN = [
  [5.01, 5.94, -123.4, 11.6, 54, 26.1, 33.0], [1.93, 6.475, 128.3, -3.0, 38, 47.6, 26.3], [5.484, 4.797, -118.7, 12.5, 43, 42.1, 33.5],
  [4.958, 5.747, -119.9, 12.4, 50, 25.2, 33.6], [2.982, 7.614, -170.4, 10.1, 49, 25.0, 32.0], [3.1, 5.273, -199.4, 8.3, 6, 45.5, 35.0],
  [0.344, -0.941, 24.8, -13.2, 0], [-0.714, 7.912, 163.5, 11.2, 0], [3.824, 0.862, 21.1, -14.6, 0], [0.153, 3.692, 87.3, -2.2, 0], [4.902, 1.662, -43.8, 13.3, 0],
  [1.856, 0.477, 37.1, -3.6, 0], [2.908, 1.921, 8.5, -5.8, 0], [6.473, -0.589, -20.7, -13.2, 0],
];

const shipped = JSON.parse(await readFile(new URL("../../toy/maze/example/map.json", import.meta.url)));
const box = shipped.boxes[shipped.goal], { at, yaw } = shipped.places.find(({ name }) => name === "image");
const facts = { ...shipped, goal: [shipped.room + box[0], shipped.room + box[1], ...box.slice(2)], at: [...at, yaw], found: false };

/** A context that keeps what is painted: polygons in pixels, and how strong. */
function context() {
  const kept = { strength: 0, points: [] };
  const page = { canvas: SIZE, kept, fill() { kept.strength = this.globalAlpha; }, lineTo: (...point) => kept.points.push(point) };
  for (const name of ["save", "restore", "beginPath", "closePath", "stroke"]) page[name] = () => {};
  return page;
}

test("the crate is painted where the maze's renderer sees it, and not behind walls", () => {
  const maze = new Maze(facts, { lens: LENS, width: SIZE.width });
  for (const [x, z, turned, pitch, pixels, middleX, middleY] of SEEN) {
    const told = `from ${x} ${z}`, page = context();
    maze.paint(page, [1000 * x, 0, 1000 * z, 100 * turned, 100 * pitch]);
    const { strength, points } = page.kept;
    if (pixels) assert.ok(strength > 0.2, `${told}: ${strength}`); else assert.ok(strength < 0.1, `${told}: ${strength}`);
    if (!pixels) continue;
    const [left, right] = [Math.min, Math.max].map((least) => least(...points.map(([across]) => across)));
    const [top, bottom] = [Math.min, Math.max].map((least) => least(...points.map(([, down]) => down)));
    assert.ok(left < middleX && middleX < right && top < middleY && middleY < Math.min(SIZE.height, bottom), `${told}: ${[left, right, top, bottom]}`);
    if (bottom < SIZE.height && strength > 0.9) assert.ok(Math.abs((left + right) / 2 - middleX) < 1.5, told);
  }
});

test("a crate that was found is painted no more, and the walls near a walk are in its own units", () => {
  const maze = new Maze({ ...facts, found: true }, { lens: LENS, width: SIZE.width }), page = context();
  maze.paint(page, [5010, 0, 5940, -12340, 1160]);
  assert.ok(!page.kept.strength);
  const walls = maze.walls({ x: 0, z: 0 }, 3);
  assert.ok(walls.some((corners) => corners.every(({ x, z }) => Math.abs(z - 3.6) < 0.13 && x < -0.69)), "the wall left of the door ahead");
  assert.deepEqual(Object.values(maze.goal).map((value) => Math.round(1000 * value)), [2950, 4150]);
});
