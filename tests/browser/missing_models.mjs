// node missing_models.mjs URL '{"vue": false, "files": ["workflow.json"], "picture": "out.png"}' -> a JSON line for each file: the
// models that the front-end misses, and what its "Download all" asks the browser to fetch; the picture is of the last
import { readFileSync } from 'node:fs'
import { loadWorkflow, openCanvas } from './canvas.mjs'

const [url, request] = process.argv.slice(2)
const { vue = false, files, picture } = JSON.parse(request)

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
  const { page } = canvas, rows = page.getByTestId('missing-model-importable-rows')
  for (const file of files) {
    canvas.errors.length = 0
    await page.evaluate(() => { window.__asked = [] })
    await loadWorkflow(page, file, JSON.parse(readFileSync(file)).nodes.length)
    await page.getByTestId('error-overlay-see-errors').click()
    await rows.waitFor()
    const missing = await rows.evaluate((list) =>
      [...list.children].map((row) => row.innerText.split('\n').map((line) => line.trim()).filter(Boolean)))
    if (picture) await page.screenshot({ path: picture })
    await page.getByTestId('missing-model-download-all').click()
    console.log(JSON.stringify({ file, missing, asked: await page.evaluate(() => window.__asked), errors: canvas.errors }))
    await page.evaluate(() => window.app.graph.clear())
  }
} finally {
  await canvas.close()
}
