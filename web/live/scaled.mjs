// Pictures as they are sent: a photo of a telephone is scaled down before.

import { words } from "./words.mjs";

const LONGEST_SIDE = 2048;

/** The bytes of a picture's file, scaled down where it is large. Throws an Error for what cannot be used. */
export async function smaller(file) {
  const bitmap = await createImageBitmap(file).catch(() => { throw new Error(words("it cannot be read")); });
  const small = Math.max(bitmap.width, bitmap.height) <= LONGEST_SIDE && file.size < 8e6;
  return new Uint8Array(await (small ? file : await drawn(bitmap)).arrayBuffer());
}

/** A JPEG of a bitmap, none of its sides longer than LONGEST_SIDE; white where it is transparent, as on the server. */
export async function drawn(bitmap) {
  const scale = Math.min(1, LONGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.round(side * scale));
  if (!width || !height) throw new Error(words("it is too small or too narrow"));
  const canvas = new OffscreenCanvas(width, height), context = canvas.getContext("2d");
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0, width, height);
  return canvas.convertToBlob({ type: "image/jpeg", quality: 0.92 });
}
