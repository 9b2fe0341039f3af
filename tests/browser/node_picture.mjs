// node node_picture.mjs URL WORKFLOW TYPE OUT.png [SCALE]: a picture of a workflow's first node of a type, in Nodes 2.0
import { readFileSync } from 'node:fs'
import { drawPreviews, hideMenus, loadWorkflow, openCanvas, settle } from './canvas.mjs'

const [url, workflow, type, picture, scale = 1.25] = process.argv.slice(2)
const canvas = await openCanvas(url, { vue: true, viewport: { width: 900, height: 1000 }, scale: Number(scale) })
try {
  const { page } = canvas
  await hideMenus(page)
  await loadWorkflow(page, workflow, JSON.parse(readFileSync(workflow)).nodes.length)
  await drawPreviews(page)
  const id = await page.evaluate((wanted) => {
    const node = window.app.graph.nodes.find((candidate) => candidate.type === wanted)
    Object.assign(window.app.canvas.ds, { scale: 1, offset: [60 - node.pos[0], 80 - node.pos[1]] })
    window.app.graph.setDirtyCanvas(true, true)
    return node.id
  }, type)
  await settle(page)
  await page.locator(`[data-node-id="${id}"]`).screenshot({ path: picture })
} finally {
  await canvas.close()
}
