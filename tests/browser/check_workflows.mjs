// node check_workflows.mjs URL '[{"vue": false, "files": [...], "templates": [...], "run": [...]}, ...]' -> one JSON line per file
// on stdout, of one renderer after the other; files among `templates` are opened as ComfyUI's template browser opens them
import { readFileSync } from 'node:fs'
import {
  drawIn, loadWorkflow, missingNodes, nodeBoxes, noteHeights, openCanvas, openTemplate, promptWithViews, run, settledBoxes, videos,
} from './canvas.mjs'

const [url, request] = process.argv.slice(2)
const wishes = JSON.parse(request)
const canvas = await openCanvas(url, { vue: wishes[0].vue, viewport: { width: 1440, height: 900 } })

async function check({ vue, files, templates = [], run: toRun = [] }) {
  await drawIn(canvas.page, vue)
  for (const file of files) {
    canvas.errors.length = 0
    const saved = JSON.parse(readFileSync(file))
    const report = { file, vue }
    if (templates.includes(file)) {
      report.zoom = await openTemplate(canvas.page, saved, file)
    } else {
      await loadWorkflow(canvas.page, file, (saved.nodes ?? Object.keys(saved)).length) // the API form has nodes alone
    }
    Object.assign(report, { missing: await missingNodes(canvas.page), prompt: await promptWithViews(canvas.page) })
    if (templates.includes(file)) report.notes = await noteHeights(canvas.page, saved)
    report.boxes = await nodeBoxes(canvas.page)
    if (toRun.includes(file)) {
      report.end = await run(canvas.page)
      report.videos = await videos(canvas.page)
      report.after = await settledBoxes(canvas.page)
    }
    console.log(JSON.stringify({ ...report, errors: [...canvas.errors] }))
  }
}

try {
  for (const wish of wishes) await check(wish)
} finally {
  await canvas.close()
}
