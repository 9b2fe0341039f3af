// Reads float64 arrays from NumPy's .npz (a zip of .npy files), enough for the golden key flights.

import { readFileSync } from "node:fs";
import { inflateRawSync } from "node:zlib";

function npy(bytes) {
  const length = bytes.readUInt16LE(8), header = bytes.toString("latin1", 10, 10 + length);
  if (!header.includes("'<f8'")) return null;
  const shape = header.match(/\(([\d, ]*)\)/)[1].split(",").filter((part) => part.trim()).map(Number);
  const body = bytes.subarray(10 + length);
  return { shape, data: Array.from({ length: body.length / 8 }, (_, i) => body.readDoubleLE(8 * i)) };
}

/** { name: { shape, data } } of the archive's float64 arrays, from the zip's central directory. */
export function readNpz(path) {
  const file = readFileSync(path), end = file.lastIndexOf(Buffer.from("PK\x05\x06", "latin1")), arrays = {};
  let at = file.readUInt32LE(end + 16);
  for (let entry = 0; entry < file.readUInt16LE(end + 10); entry += 1) {
    const method = file.readUInt16LE(at + 10), size = file.readUInt32LE(at + 20), nameLength = file.readUInt16LE(at + 28);
    const name = file.toString("utf8", at + 46, at + 46 + nameLength), local = file.readUInt32LE(at + 42);
    const start = local + 30 + file.readUInt16LE(local + 26) + file.readUInt16LE(local + 28);
    const raw = file.subarray(start, start + size);
    arrays[name.replace(".npy", "")] = npy(method === 8 ? inflateRawSync(raw) : raw);
    at += 46 + nameLength + file.readUInt16LE(at + 30) + file.readUInt16LE(at + 32);
  }
  return arrays;
}
