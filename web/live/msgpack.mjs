// msgpack, as much of it as the protocol needs.

/** @param {unknown} value  null, booleans, numbers, strings, Uint8Array, arrays, plain objects */
export function pack(value) {
  const parts = [];
  const bytes = (...numbers) => parts.push(Uint8Array.from(numbers));
  const sized = (size, small, codes) => {
    if (small !== null && size < small[1]) return bytes(small[0] | size);
    const width = size < 256 && codes[0] ? 1 : size < 65536 ? 2 : 4, view = new DataView(new ArrayBuffer(1 + width));
    view.setUint8(0, codes[Math.log2(width)]);
    if (width === 1) view.setUint8(1, size); else if (width === 2) view.setUint16(1, size); else view.setUint32(1, size);
    return parts.push(new Uint8Array(view.buffer));
  };
  const write = (item) => {
    if (item === null || item === undefined) bytes(0xc0);
    else if (typeof item === "boolean") bytes(item ? 0xc3 : 0xc2);
    else if (typeof item === "number") number(item);
    else if (typeof item === "string") {
      const text = new TextEncoder().encode(item);
      sized(text.length, [0xa0, 32], [0xd9, 0xda, 0xdb]);
      parts.push(text);
    } else if (item instanceof Uint8Array) {
      sized(item.length, null, [0xc4, 0xc5, 0xc6]);
      parts.push(item);
    } else if (Array.isArray(item)) {
      sized(item.length, [0x90, 16], [0, 0xdc, 0xdd]);
      item.forEach(write);
    } else {
      const entries = Object.entries(item).filter(([, entry]) => entry !== undefined);
      sized(entries.length, [0x80, 16], [0, 0xde, 0xdf]);
      for (const [key, entry] of entries) { write(key); write(entry); }
    }
  };
  const number = (item) => {
    if (Number.isInteger(item) && item >= 0 && item < 128) return bytes(item);
    const whole = Number.isInteger(item) && item >= 0 && item < 2 ** 32, view = new DataView(new ArrayBuffer(whole ? 5 : 9));
    view.setUint8(0, whole ? 0xce : 0xcb);
    if (whole) view.setUint32(1, item); else view.setFloat64(1, item);
    return parts.push(new Uint8Array(view.buffer));
  };
  write(value);
  const whole = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  parts.reduce((at, part) => { whole.set(part, at); return at + part.length; }, 0);
  return whole;
}

/** @param {ArrayBuffer} buffer  what Python's msgpack writes */
export function unpack(buffer) {
  const view = new DataView(buffer), text = new TextDecoder();
  let at = 0;
  const take = (size) => { at += size; return at - size; };
  const chars = (size) => text.decode(new Uint8Array(buffer, take(size), size));
  const list = (size) => Array.from({ length: size }, read);
  const map = (size) => Object.fromEntries(Array.from({ length: size }, () => [read(), read()]));
  const size = (width) => (width === 1 ? view.getUint8(take(1)) : width === 2 ? view.getUint16(take(2)) : view.getUint32(take(4)));
  const wide = () => Number(view.getBigUint64(take(8)));
  const READERS = {
    0xc0: () => null, 0xc2: () => false, 0xc3: () => true,
    0xc4: () => bin(size(1)), 0xc5: () => bin(size(2)), 0xc6: () => bin(size(4)),
    0xca: () => view.getFloat32(take(4)), 0xcb: () => view.getFloat64(take(8)),
    0xcc: () => size(1), 0xcd: () => size(2), 0xce: () => size(4), 0xcf: wide,
    0xd0: () => view.getInt8(take(1)), 0xd1: () => view.getInt16(take(2)), 0xd2: () => view.getInt32(take(4)),
    0xd3: () => Number(view.getBigInt64(take(8))),
    0xd9: () => chars(size(1)), 0xda: () => chars(size(2)), 0xdb: () => chars(size(4)),
    0xdc: () => list(size(2)), 0xdd: () => list(size(4)), 0xde: () => map(size(2)), 0xdf: () => map(size(4)),
  };
  const bin = (length) => new Uint8Array(buffer, take(length), length);
  function read() {
    const code = view.getUint8(take(1));
    if (code < 0x80) return code;
    if (code >= 0xe0) return code - 256;
    if (code < 0x90) return map(code & 15);
    if (code < 0xa0) return list(code & 15);
    if (code < 0xc0) return chars(code & 31);
    const reader = READERS[code];
    if (!reader) throw new Error(`msgpack: no such code ${code}`);
    return reader();
  }
  return read();
}
