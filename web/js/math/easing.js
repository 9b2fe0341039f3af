// How a move speeds up and slows down: progress 0..1 as a function of time 0..1. camera/easing.py has the same.

const power = (exponent) => (u) => u ** exponent;
const out = (ease) => (u) => 1 - ease(1 - u);
const inOut = (ease) => (u) => (u < 0.5 ? ease(2 * u) : 2 - ease(2 - 2 * u)) / 2;

/** @type {Record<string, (u: number) => number>} */
export const EASINGS = {
  linear: power(1),
  ease_in: power(2),
  ease_out: out(power(2)),
  ease_in_out: (u) => u * u * (3 - 2 * u),
  cubic_in: power(3),
  cubic_out: out(power(3)),
  cubic_in_out: inOut(power(3)),
  quint_in_out: inOut(power(5)),
  sine_in_out: (u) => (1 - Math.cos(Math.PI * u)) / 2,
  smootherstep: (u) => u ** 3 * (u * (6 * u - 15) + 10),
};
