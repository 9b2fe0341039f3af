// node pictures.mjs URL '{"file": "out.png", ...}' [WIDTH HEIGHT SCALE [vue]]: a picture of each workflow's graph, menus hidden
import { readFileSync } from 'node:fs'
import { drawPreviews, fitView, hideMenus, loadWorkflow, openCanvas } from './canvas.mjs'

const [url, request, width = 1280, height = 720, scale = 1, renderer = 'classic'] = process.argv.slice(2)
const viewport = { width: Number(width), height: Number(height) }
const canvas = await openCanvas(url, { vue: renderer === 'vue', viewport, scale: Number(scale) })
try {
  await hideMenus(canvas.page)
  for (const [file, picture] of Object.entries(JSON.parse(request))) {
    await loadWorkflow(canvas.page, file, JSON.parse(readFileSync(file)).nodes.length)
    await drawPreviews(canvas.page)
    await fitView(canvas.page)
    await canvas.page.screenshot({ path: picture })
  }
} finally {
  await canvas.close()
}
