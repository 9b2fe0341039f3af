// The way that was walked, from above: a line with an arrow at its end.

const CLOSE = 40; // thousandths of a unit between two points of the line
const LEAST = 2500; // thousandths that the map shows across at least
const MOST_POINTS = 6000;

export class WayMap {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas;
    this.maze = null; // the walls and the crate, where they are known
    this.clear();
  }

  /** Another walk begins. */
  clear() {
    this.points = []; // { chunk, x, z }
    this.here = null;
    this.draw();
  }

  /** A frame is seen. @param {number} chunk @param {number[]} camera  x, y, z, yaw and pitch */
  seen(chunk, [x, , z, yaw]) {
    const last = this.points.at(-1);
    this.here = { x, z, yaw: yaw / 100 };
    if (!last || Math.hypot(x - last.x, z - last.z) > CLOSE) this.points.push({ chunk, x, z });
    if (this.points.length > MOST_POINTS) this.points = this.points.filter((_, index) => index % 2 === 0);
    this.draw();
  }

  /** The walk goes back to where so many chunks were made. */
  cut(chunks) {
    this.points = this.points.filter(({ chunk }) => chunk < chunks);
  }

  draw() {
    const { canvas, here, points } = this;
    if (canvas.hidden) return;
    const context = canvas.getContext("2d"), { width, height } = canvas;
    context.clearRect(0, 0, width, height);
    if (!here) return;
    const goal = this.maze && !this.maze.map.found ? [{ x: 1000 * this.maze.goal.x, z: 1000 * this.maze.goal.z }] : [];
    const { x: middleX, z: middleZ, across } = extent([...points, here, ...goal]);
    const scale = (0.82 * width) / across;
    const place = ({ x, z }) => [width / 2 + (x - middleX) * scale, height / 2 - (z - middleZ) * scale];
    this.#drawMaze(context, place, across);
    Object.assign(context, { lineWidth: width / 70, lineJoin: "round", strokeStyle: "#fffc", fillStyle: "#4fd1a5" });
    context.beginPath();
    for (const point of [...points, here]) context.lineTo(...place(point));
    context.stroke();
    context.beginPath();
    context.arc(...place(points[0] ?? here), width / 50, 0, 2 * Math.PI);
    context.fillStyle = "#fff";
    context.fill();
    arrow(context, place(here), here.yaw, width / 18);
  }

  #drawMaze(context, place, across) {
    if (!this.maze) return;
    const polygon = (corners, colour) => {
      context.beginPath();
      for (const { x, z } of corners) context.lineTo(...place({ x: 1000 * x, z: 1000 * z }));
      context.fillStyle = colour;
      context.fill();
    };
    const here = { x: this.here.x / 1000, z: this.here.z / 1000 };
    for (const wall of this.maze.walls(here, across / 1000)) polygon(wall, "#fff7");
    if (this.maze.map.found) return;
    const { x, z } = this.maze.goal, size = across / 22000;
    polygon([[0, -1], [1, 0], [0, 1], [-1, 0]].map(([right, ahead]) => ({ x: x + size * right, z: z + size * ahead })), "#f6c95b");
  }
}

/** The middle of points, and how much has to be seen. */
function extent(points) {
  const side = (axis) => {
    const values = points.map((point) => point[axis]), low = Math.min(...values), high = Math.max(...values);
    return { middle: (low + high) / 2, size: high - low };
  };
  const [x, z] = [side("x"), side("z")];
  return { x: x.middle, z: z.middle, across: Math.max(LEAST, x.size, z.size) };
}

function arrow(context, [x, y], yaw, size) {
  context.save();
  context.translate(x, y);
  context.rotate((yaw * Math.PI) / 180);
  context.beginPath();
  for (const [right, down] of [[0, -1], [0.65, 0.8], [0, 0.4], [-0.65, 0.8]]) context.lineTo(right * size, down * size);
  context.closePath();
  context.fillStyle = "#4fd1a5";
  context.fill();
  context.restore();
}
