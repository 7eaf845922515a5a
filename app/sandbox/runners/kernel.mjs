// A JavaScript interpreter that keeps what was defined from one cell to the next.
//
// Lines of JSON come in by descriptor 3 and go out by descriptor 4:
//
//   in   {"run": code, "mark": text}                   run a cell; afterwards `mark` is written to stdout and stderr
//        {"answer": id, "value": …} or {"answer": id, "error": {code, message}}
//   out  {"ready": version}                            once
//        {"call": id, "tool": name, "arguments": {…}}  a cell wants another tool
//        {"image": base64, "mime": type}               a cell shows an image
//        {"done": mark, "value": text?, "error": {summary, text}?}
//
// Cells are run by V8 itself in the mode its consoles use: await at the top, declarations that may come again, the
// value of the last expression. What that mode lacks is added by small changes to the text (see `Cell`). Where V8 has
// to tell what is code and what is a string, a comment or a pattern, it is asked: a change that only code could trip
// over is made on trial, together with one that keeps the trial from ever running.

import { writeSync } from "node:fs";
import { Session } from "node:inspector";
import { createRequire } from "node:module";
import { Socket } from "node:net";
import { homedir, tmpdir } from "node:os";
import process from "node:process";
import { setImmediate } from "node:timers";
import { inspect } from "node:util";
import vm from "node:vm";

const MOST_TRIALS = 400;
const MOST_REPAIRS = 40;
const MOST_SHOWN = 100_000;
const MOST_LATE = 10;
const IMAGES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const SHOWN = { depth: 4, maxArrayLength: 100, maxStringLength: 20_000, breakLength: 100 };
const NEVER = "\n@!";
const FOREIGN = /\(?node:(?:internal|inspector|diagnostics_channel)\b/;
const LINE_END = /\r\n|[\n\r\u2028\u2029]/g;
const here = import.meta.url;
const cwd = process.cwd();
const { parse, stringify } = JSON;
const { exit } = process;
const { write: streamWrite } = process.stdout;

const session = new Session();
const waiting = new Map();
const late = [];
let calls = 0;
let cells = 0;
let hasBegun = false;
let isBusy = false;
let show;

function post(method, options) {
  return new Promise((resolve, reject) => {
    session.post(method, options, (error, answer) => (error ? reject(error) : resolve(answer)));
  });
}

function evaluate(expression) {
  return post("Runtime.evaluate", { expression, replMode: true, awaitPromise: true, silent: true, objectGroup: "cell" });
}

// What V8 says against a text that it will not run: the sentence, and where.
async function complaint(text) {
  const { exceptionDetails: details } = await evaluate(text);
  const [sentence] = (details?.exception?.description ?? "").split("\n");
  return { sentence, line: details?.lineNumber ?? 0, column: details?.columnNumber ?? 0 };
}

function offset(text, line, column) {
  const ends = [{ index: 0, 0: "" }, ...text.matchAll(LINE_END)];
  const end = ends[Math.min(line, ends.length - 1)];
  return end.index + end[0].length + column;
}

// One cell on its way into V8. Every change keeps the lines where they are, and nearly all keep the columns.
class Cell {
  constructor(text) {
    this.name = `cell${++cells}.js`;
    this.text = text;
    this.source = text;
    this.moved = "";
    const isStrict = /^(?:\s|\/\/[^\n]*\n|\/\*[^]*?\*\/)*(["'])use strict\1/.test(text);
    this.first = isStrict ? '"use strict";await $begin();' : "await $begin();";
  }

  get prefix() {
    return this.first + this.moved;
  }

  change(at, length, by) {
    this.source = this.source.slice(0, at) + by + this.source.slice(at + length);
  }

  // Whether V8 trips, and with this sentence, over `trial` in the place of what stands there.
  async trips(at, length, trial, sentence) {
    const text = this.source.slice(0, at) + trial + this.source.slice(at + length) + NEVER;
    const found = await complaint(text);
    return found.sentence.includes(sentence) && offset(text, found.line, found.column) === at;
  }

  async places(word, trial, sentence) {
    const found = [];
    const all = [...this.source.matchAll(word)];
    if (all.length > MOST_TRIALS) return found;
    for (const { index } of all) {
      if (await this.trips(index, trial.length - trial.trimEnd().length, trial.trimEnd(), sentence)) found.push(index);
    }
    return found;
  }

  // `const` outside of functions becomes `let`, so that a later cell may declare the same name either way.
  async loosen() {
    for (const at of await this.places(/\bconst\b/g, "return;", "Illegal return statement")) {
      this.change(at, 5, "let  ");
    }
  }

  // V8 knows no importer here; ours resolves like a module in the workspace. `$mport` is as long as `import`.
  async importByCall() {
    const dynamic = /\bimport\b(?=(?:\s|\/\/[^\n]*\n|\/\*[^]*?\*\/)*\()/g;
    for (const at of await this.places(dynamic, "\\u0069 ", "must not contain escaped characters")) {
      this.change(at, 6, "$mport");
    }
  }

  // A cell is no module: `import a, { b as c } from "d"` becomes `let {default:a,b:c}=await $mport("d")`.
  async importByStatement() {
    for (let n = 0; n < MOST_TRIALS; n++) {
      const text = this.source + NEVER;
      const found = await complaint(text);
      if (!found.sentence.includes("Cannot use import statement outside a module")) return;
      const at = offset(text, found.line, found.column);
      const statement = readImport(this.source.slice(at));
      if (statement === null) return;
      this.change(at, statement.length, statement.text);
    }
  }

  // A name that an earlier cell declared another way. What V8 says does not tell where it is declared in this one, so
  // it is declared once more before it: then the complaint is about the right place.
  async redeclare(name) {
    const before = `let ${name};`;
    const found = await complaint(before + this.source + NEVER);
    if (!found.sentence.includes("has already been declared")) return false;
    const at = offset(before + this.source, found.line, found.column) - before.length;
    if (at < 0) return false;
    if (/\bfunction\s*\*?\s*$/.test(this.source.slice(0, at))) return this.moveFunction(name, at);
    return this.changeKind(name, at);
  }

  // A function is there before the first line runs, and so is its name.
  moveFunction(name, at) {
    const other = `${name}$${cells}`;
    this.change(at, name.length, other);
    this.moved += `Object.defineProperty(${other},"name",{value:"${name}"});${name}=${other};`;
    return true;
  }

  // `var` where an earlier cell has `let`, or the other way round.
  async changeKind(name, at) {
    const before = this.source;
    const kinds = [...before.slice(0, at).matchAll(/\b(?:let|var)\b/g)].reverse().slice(0, MOST_REPAIRS);
    for (const { index, 0: kind } of kinds) {
      const other = kind.startsWith("let") ? "var" : "let";
      this.change(index, 3, other);
      if (!(await this.isRefused(name))) return true;
      this.source = before;
    }
    return false;
  }

  // Whether a name still cannot be declared: a text that throws as its first act says so without doing anything else.
  async isRefused(name) {
    const found = await complaint(`throw 0;${this.source}`);
    return found.sentence.includes(`'${name}' has already been declared`);
  }

  async run() {
    await this.loosen();
    await this.importByCall();
    await this.importByStatement();
    for (let n = 0; ; n++) {
      hasBegun = false;
      const answer = await evaluate(`${this.prefix}${this.source}\n//# sourceURL=${this.name}`);
      const name = hasBegun || n >= MOST_REPAIRS ? null : conflict(answer);
      if (name === null || !(await this.redeclare(name))) return answer;
    }
  }
}

function conflict({ exceptionDetails: details }) {
  if (!details || details.lineNumber || details.columnNumber) return null;
  const found = /^SyntaxError: Identifier '(.+)' has already been declared/.exec(details.exception?.description ?? "");
  return found && found[1];
}

// The import statement a text begins with, as a declaration of the same lines; null for what is no such statement.
function readImport(text) {
  const gap = "(?:\\s|//[^\\n]*\\n|/\\*[^]*?\\*/)*";
  const word = "[\\p{ID_Start}$_][\\p{ID_Continue}$\\u200c\\u200d]*";
  const quoted = `"[^"\\n]*"|'[^'\\n]*'`;
  const clause = `(?:(?<own>${word})${gap},?${gap})?(?:\\*${gap}as${gap}(?<all>${word})|(?<some>\\{[^{}]*\\}))?`;
  const attributes = `(?:${gap}(?:with|assert)${gap}(?<with>\\{[^{}]*\\}))?`;
  const form = new RegExp(`^import${gap}(?:${clause}${gap}\\bfrom\\b${gap})?(?<from>${quoted})${attributes}`, "u");
  const found = form.exec(text);
  if (found === null) return null;
  const { own, all, some, from } = found.groups;
  const options = found.groups.with ? `,{with:${found.groups.with}}` : "";
  const wanted = `await $mport(${from}${options})`;
  const names = some && some.replaceAll(new RegExp(`\\bas\\b(?=${gap}${word})`, "gu"), ":");
  const parts = [];
  if (all) parts.push(`${all}=${wanted}`);
  if (own) parts.push(all ? `{default:${own}}=${all}` : `{default:${own}}=${wanted}`);
  if (names) parts.push(`${names}=${wanted}`);
  const lines = found[0].split("\n").length - (names ?? "").split("\n").length;
  const said = parts.length ? `let ${parts.join(",")}` : `void ${wanted}`;
  return { length: found[0].length, text: `${said};${"\n".repeat(Math.max(0, lines))}` };
}

function send(message) {
  const data = Buffer.from(`${stringify(message)}\n`);
  for (let done = 0; done < data.length; ) {
    try {
      done += writeSync(4, data, done);
    } catch (error) {
      if (error.code !== "EAGAIN") throw error;
    }
  }
}

class ToolError extends Error {
  get name() {
    return "ToolError";
  }

  // It is made when the tool is called, which is what its stack is to tell, and says later what went wrong.
  say({ code, message, result }) {
    const frames = this.stack.split("\n").slice(1);
    this.message = message;
    this.stack = [`ToolError: ${message}`, ...frames].join("\n");
    this.code = code;
    Object.defineProperty(this, "result", { value: result });
    return this;
  }
}

function tool(name, args = {}) {
  const failure = new ToolError();
  Error.captureStackTrace(failure, tool);
  return new Promise((resolve, reject) => {
    if (!isBusy) throw new Error("tool() works only while a cell runs");
    if (typeof name !== "string") throw new TypeError("tool() takes the name of a tool and its arguments");
    const id = ++calls;
    send({ call: id, tool: name, arguments: typeof args === "string" ? { input: args } : args });
    waiting.set(id, { resolve, reject: (error) => reject(failure.say(error)) });
  });
}

function answered({ answer, value, error }) {
  const call = waiting.get(answer);
  waiting.delete(answer);
  if (error) call?.reject(error);
  else call?.resolve(value);
}

function emitImage(image) {
  if (!isBusy) throw new Error("emitImage() works only while a cell runs");
  const url = typeof image === "string" ? /^data:([^;,]+);base64,(.*)$/s.exec(image) : null;
  const [mime, data] = url
    ? [url[1], url[2]]
    : [image?.mimeType ?? "image/png", Buffer.from(image?.bytes ?? "").toString("base64")];
  if (!IMAGES.includes(mime) || !data) {
    throw new TypeError("emitImage() takes a data URL, or {bytes, mimeType}, of a PNG, JPEG, GIF or WebP image");
  }
  send({ image: data, mime });
}

function shown(value) {
  try {
    const text = inspect(value, SHOWN);
    return text.length > MOST_SHOWN ? `${text.slice(0, MOST_SHOWN)}… ${text.length - MOST_SHOWN} more characters` : text;
  } catch (error) {
    return `[a value that cannot be shown: ${error?.message}]`;
  }
}

// Without the frames of this file and of Node's insides; with the columns of the text as it was sent.
function cleaned(text, cell) {
  const kept = [];
  for (const line of text.split("\n")) {
    const isOurs = /^\s*at /.test(line) && (line.includes(here) || FOREIGN.test(line));
    if (!isOurs) kept.push(line);
    else if (line.endsWith(" {")) kept.push(`${kept.pop()} {`); // what else the error has follows
  }
  const left = kept.join("\n");
  if (!cell) return left;
  return left.replaceAll(new RegExp(`(?<=\\b${cell.name}:1:)\\d+`, "g"), (column) => {
    return String(Math.max(1, column - cell.prefix.length));
  });
}

function failed(error, details, cell) {
  if (error instanceof SyntaxError && !hasBegun) return misread(error, details, cell);
  const text = cleaned(shown(error), cell);
  const summary = error instanceof Error ? `${error.name}: ${error.message}` : `Uncaught ${text}`;
  return { summary, text: error instanceof Error ? text : `Uncaught ${text}` };
}

const HINTS = {
  "Unexpected token 'export'": "A cell is no module: leave `export` out; what is declared stays for later cells.",
  "Cannot use 'import.meta' outside a module": "A cell is no module and has no `import.meta`; use process.cwd().",
  "Illegal return statement": "A cell is no function: leave `return` out; the value of the last expression is shown.",
};

function misread(error, details, cell) {
  const lines = cell.text.split(LINE_END);
  const line = Math.min(details.lineNumber, lines.length - 1);
  const moved = line === 0 ? cell.prefix.length : 0;
  const column = Math.min(Math.max(0, details.columnNumber - moved), lines[line].length);
  const place = lines[line].length <= 200 ? `${lines[line]}\n${" ".repeat(column)}^\n` : "";
  const summary = `SyntaxError: ${error.message}`;
  const hint = HINTS[error.message];
  return {
    summary: hint ? `${summary}. ${hint}` : summary,
    text: `${cell.name}:${line + 1}\n${place}${summary}${hint ? `\n${hint}` : ""}`,
  };
}

// A value as V8 lends it becomes the value itself only in a call that it is an argument of.
async function seen(remote, work) {
  const { objectId, value, unserializableValue } = remote ?? {};
  const argument = objectId ? { objectId } : unserializableValue ? { unserializableValue } : { value };
  let found;
  show.work = (real) => (found = work(real));
  await post("Runtime.callFunctionOn", {
    objectId: show.id,
    functionDeclaration: "function (value) { this(value) }",
    arguments: [argument],
    silent: true,
  });
  return found;
}

async function run({ run: text, mark }) {
  isBusy = true;
  tellLate();
  const cell = new Cell(text);
  const { result, exceptionDetails: details } = await cell.run();
  while (waiting.size) await new Promise((resolve) => setImmediate(resolve));
  const done = { done: mark };
  if (details) done.error = await seen(details.exception, (error) => failed(error, details, cell));
  else if (result.type !== "undefined") done.value = await seen(result, (value) => cleaned(shown(value), cell));
  await post("Runtime.releaseObjectGroup", { objectGroup: "cell" });
  isBusy = false;
  await Promise.all([write(process.stdout, 1, mark), write(process.stderr, 2, mark)]);
  send(done);
}

function write(stream, fd, text) {
  if (stream.writable) return new Promise((resolve) => streamWrite.call(stream, text, () => resolve()));
  try {
    writeSync(fd, text);
  } catch {
    // it was closed by a cell, and nobody can be told
  }
  return undefined;
}

function lost(error, origin) {
  const text = `[${origin}] ${cleaned(shown(error))}\n`;
  if (isBusy) process.stderr.write(text);
  else if (late.length < MOST_LATE) late.push(text);
}

function tellLate() {
  for (const text of late.splice(0)) process.stderr.write(text);
}

async function open() {
  session.connect();
  const define = (name, value, isOpen) =>
    Object.defineProperty(globalThis, name, { value, configurable: isOpen, writable: isOpen, enumerable: false });
  define("$begin", () => void (hasBegun = true), false);
  define("$mport", await importer(), false);
  define("tool", tool, true);
  define("require", createRequire(`${cwd}/`), true);
  define("codex", { tool, emitImage, cwd, homeDir: homedir(), tmpDir: tmpdir() }, true);
  const work = (value) => show.work(value);
  show = { work: null, id: null };
  define("$show", work, true);
  show.id = (await post("Runtime.evaluate", { expression: "$show" })).result.objectId;
  delete globalThis.$show;
}

// The importer resolves from the workspace. Node calls it experimental, once, which is nobody's business here.
async function importer() {
  const importModuleDynamically = vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER;
  const script = new vm.Script("(from, options) => import(from, options)", {
    filename: `${cwd}/cell.js`,
    importModuleDynamically,
  });
  const found = script.runInThisContext();
  const { emitWarning } = process;
  process.emitWarning = () => {};
  await found("node:fs");
  process.emitWarning = emitWarning;
  return found;
}

for (const stream of [process.stdout, process.stderr]) stream._handle?.setBlocking?.(true);
process.on("uncaughtException", (error) => lost(error, "uncaught exception"));
process.on("unhandledRejection", (error) => lost(error, "unhandled rejection"));
await open();
let rest = "";
const channel = new Socket({ fd: 3, readable: true, writable: false });
channel.setEncoding("utf8");
channel.on("close", () => exit.call(process, 0));
channel.on("data", (data) => {
  const lines = (rest + data).split("\n");
  rest = lines.pop();
  for (const line of lines) {
    const message = parse(line);
    if ("run" in message) setImmediate(() => run(message));
    else answered(message);
  }
});
send({ ready: process.version });
