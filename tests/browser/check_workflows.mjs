// node check_workflows.mjs URL '{"vue": false, "files": [...], "templates": [...], "run": [...]}' -> one JSON line per file on
// stdout; files among `templates` are opened as ComfyUI's template browser opens them
import { readFileSync } from 'node:fs'
import {
  loadWorkflow, missingNodes, nodeBoxes, noteHeights, openCanvas, openTemplate, promptWithViews, run, settledBoxes, videos,
} from './canvas.mjs'

const [url, request] = process.argv.slice(2)
const { vue, files, templates = [], run: toRun = [] } = JSON.parse(request)
const canvas = await openCanvas(url, { vue, viewport: { width: 1440, height: 900 } })
try {
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
} finally {
  await canvas.close()
}
