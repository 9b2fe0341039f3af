// node missing_models.mjs URL '{"vue": false, "file": "workflow.json", "picture": "out.png"}' -> one JSON line: the models that the
// front-end misses, and what its "Download all" asks the browser to fetch
import { readFileSync } from 'node:fs'
import { loadWorkflow, openCanvas } from './canvas.mjs'

const [url, request] = process.argv.slice(2)
const { vue = false, file, picture } = JSON.parse(request)

/** Let links that start a download be written down instead of followed. */
function recordDownloads() {
  window.__asked = []
  const click = HTMLAnchorElement.prototype.click
  HTMLAnchorElement.prototype.click = function () {
    if (this.download) window.__asked.push({ url: this.href, name: this.download })
    else click.call(this)
  }
}

const settings = { 'Comfy.Workflow.ShowMissingModelsWarning': true }
const canvas = await openCanvas(url, { vue, settings, script: recordDownloads })
try {
  const { page } = canvas
  await loadWorkflow(page, file, JSON.parse(readFileSync(file)).nodes.length)
  const rows = page.getByTestId('missing-model-importable-rows')
  await page.getByTestId('error-overlay-see-errors').click()
  await rows.waitFor()
  const missing = await rows.evaluate((list) =>
    [...list.children].map((row) => row.innerText.split('\n').map((line) => line.trim()).filter(Boolean)))
  if (picture) await page.screenshot({ path: picture })
  await page.getByTestId('missing-model-download-all').click()
  console.log(JSON.stringify({ missing, asked: await page.evaluate(() => window.__asked), errors: canvas.errors }))
} finally {
  await canvas.close()
}
