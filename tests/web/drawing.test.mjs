import assert from "node:assert/strict";
import test from "node:test";
import { buildScene, measure, niceStep } from "../../web/js/drawing/scene.js";
import { SIDE, TOP, View } from "../../web/js/drawing/view.js";
import { fromAngles } from "../../web/js/math/quaternions.js";
import { validate } from "../../web/js/path/document.js";

const at = (frame, z) => ({ frame, position: [0, 0, z], quaternion: [0, 0, 0, 1] });
const DOLLY = validate({ version: 1, frames: 81, keyframes: [at(0, 0), at(80, 2)] });
const camera = (position, quaternion = [0, 0, 0, 1]) => new View({ position, quaternion }, 416 / Math.tan((79 * Math.PI) / 360), 832, 480);
const near = (found, expected) => expected.forEach((value, i) => assert.ok(Math.abs(found[i] - value) < 1e-6, `${found}`));

test("a known point moves as the name of the move says", () => {
  const point = [0, 0, 5], [x, y] = camera([0, 0, 0]).point(point);
  near([x, y], [416, 240]);
  assert.ok(camera([0, 0, 0], fromAngles(10, 0)).point(point)[0] < x, "pan right moves it left");
  assert.ok(camera([0, 0, 0], fromAngles(0, 10)).point(point)[1] > y, "tilt up moves it down");
  assert.ok(camera([1, 0, 0]).point(point)[0] < x, "truck right moves it left");
  assert.ok(camera([0, -1, 0]).point(point)[1] > y, "pedestal up moves it down");
  assert.ok(camera([0, 0, 2]).point([1, 0, 5])[0] > camera([0, 0, 0]).point([1, 0, 5])[0], "dolly in makes it grow");
  assert.equal(camera([0, 0, 6]).point(point), null);
});

test("the first camera sees the card edge to edge", () => {
  const { card } = buildScene(DOLLY, measure(DOLLY), 832 / 480);
  near(camera([0, 0, 0]).point(card[0]), [0, 0]);
  near(camera([0, 0, 0]).point(card[2]), [832, 480]);
});

test("the card's CSS matrix puts pixels where the projection does", () => {
  const { card } = buildScene(DOLLY, measure(DOLLY), 832 / 480);
  const view = camera([0.5, -0.4, -1], fromAngles(12, -7)), matrix = view.cssMatrix(card, 416, 240);
  const m = matrix.slice(9, -1).split(",").map(Number);
  const place = (u, v) => [0, 1].map((row) => (m[row] * u + m[4 + row] * v + m[12 + row]) / (m[3] * u + m[7] * v + m[15]));
  [[0, 0], [416, 0], [416, 240], [0, 240]].forEach(([u, v], i) => {
    place(u, v).forEach((value, axis) => assert.ok(Math.abs(value - view.point(card[i])[axis]) < 0.01));
  });
});

test("plans show ahead as up and up as up, and find the point under a pixel", () => {
  const plan = ({ quaternion }) => new View({ position: [0, 0, 0], quaternion }, 50, 200, 100, true), top = plan(TOP), side = plan(SIDE);
  near(top.point([1, 9, 0.5]), [150, 25]);
  near(side.point([9, -0.5, 1]), [150, 25]);
  near(top.under(top.point([1, 2, 3]), [7, 2, 7]), [1, 2, 3]);
  near(side.under(side.point([1, 2, 3]), [1, 7, 7]), [1, 2, 3]);
});

test("a point under a pixel of a perspective view keeps its depth, and a drag of as many pixels goes there", () => {
  const view = camera([0.5, -0.4, -1], fromAngles(12, -7)), point = [0.2, 0.1, 3], [x, y] = view.point(point);
  near(view.under([x, y, 0], point), point);
  const moved = view.under([x + 30, y - 20, 0], point);
  near(view.point(moved), [x + 30, y - 20, 0]);
  near([view.toCamera(moved)[2]], [view.toCamera(point)[2]]);
  near(view.beside(point, [30, -20, 0]), moved);
});

test("grid steps are 1, 2 or 5 times a power of ten", () => {
  assert.deepEqual([0.03, 0.1, 1.2, 4, 70].map((length) => Number(niceStep(length).toPrecision(6))), [0.05, 0.1, 2, 5, 100]);
});
