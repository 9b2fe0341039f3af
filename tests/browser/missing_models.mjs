// node missing_models.mjs URL '{"vue": false, "file": "workflow.json", "picture": "out.png", "wait": 15000}' -> one JSON line: the
// models that the front-end misses (it says so within `wait` ms), and what its "Download all" asks the browser to fetch
import { readFileSync } from 'node:fs'
import { loadWorkflow, openCanvas, PATIENCE } from './canvas.mjs'

const [url, request] = process.argv.slice(2)
const { vue = false, file, picture, wait = PATIENCE } = JSON.parse(request)
const canvas = await openCanvas(url, { vue })

/** Let links that start a download be written down instead of followed. */
function recordDownloads() {
  window.__asked = []
  const click = HTMLAnchorElement.prototype.click
  HTMLAnchorElement.prototype.click = function () {
    if (this.download) window.__asked.push({ url: this.href, name: this.download })
    else click.call(this)
  }
}

try {
  const { page } = canvas
  const warn = { 'Comfy.Workflow.ShowMissingModelsWarning': true }
  await fetch(`${url}/api/settings`, { method: 'POST', body: JSON.stringify(warn) })
  await page.addInitScript(recordDownloads)
  await page.reload()
  await page.waitForFunction(() => window.app?.graph && window.LiteGraph?.registered_node_types?.KSampler)
  await loadWorkflow(page, file, JSON.parse(readFileSync(file)).nodes.length)
  const rows = page.getByTestId('missing-model-importable-rows')
  const overlay = page.getByTestId('error-overlay-see-errors')
  const seen = await overlay.waitFor({ timeout: wait }).then(() => true, () => false)
  if (seen) await overlay.click()
  const listed = seen && await rows.waitFor({ timeout: wait }).then(() => true, () => false)
  const report = { missing: [], asked: [], errors: canvas.errors }
  if (listed) {
    report.missing = await rows.evaluate((list) =>
      [...list.children].map((row) => row.innerText.split('\n').map((line) => line.trim()).filter(Boolean)))
    if (picture) await page.screenshot({ path: picture })
    await page.getByTestId('missing-model-download-all').click()
    report.asked = await page.evaluate(() => window.__asked)
  } else if (picture) await page.screenshot({ path: picture })
  console.log(JSON.stringify(report))
} finally {
  await canvas.close()
}
