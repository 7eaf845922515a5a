// Cells on their way into V8, which runs them in the mode its consoles use: await at the top, declarations that may come
// again, the value of the last expression. What that mode lacks is added by small changes to the text. Where V8 has to
// tell what is code and what is a string, a comment or a pattern, it is asked: a change that only code could trip over
// is made on trial, together with one that keeps the trial from ever running.

import { Session } from "node:inspector";
import process from "node:process";
import vm from "node:vm";

// Names that a cell declares would hide the global ones from us, too.
const { Math, Object, Promise, RegExp } = globalThis;

const MAX_TRIALS = 400;
const MAX_REPAIRS = 40;
const NEVER = "\n;;;;@!"; // not at once, as V8 looks a few words ahead
const GAP = "(?:\\s|//[^\\n]*\\n|/\\*[^]*?\\*/)*";
const STRICT = new RegExp(`^${GAP}(["'])use strict\\1`);
const FUNCTION = new RegExp(`^(?:async\\b${GAP})?function\\b${GAP}\\*?${GAP}`);
const IMPORT_CALL = new RegExp(`\\bimport\\b(?=${GAP}\\()`, "g");
export const LINE_END = /\r\n|[\n\r\u2028\u2029]/g;

const session = new Session();
let cells = 0;
let current;

export function post(method, options) {
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
export class Cell {
  constructor(text) {
    this.name = `cell${++cells}.js`;
    this.text = text;
    this.source = text;
    this.moved = "";
    this.hasBegun = false;
    this.first = STRICT.test(text) ? '"use strict";await $begin();' : "await $begin();";
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

  // Where a word is code: there V8 trips over `trial` in the place of its first characters.
  async places(word, length, trial, sentence) {
    const found = [];
    const all = [...this.source.matchAll(word)];
    if (all.length > MAX_TRIALS) return found;
    for (const { index } of all) {
      if (await this.trips(index, length, trial, sentence)) found.push(index);
    }
    return found;
  }

  // `const` outside of functions becomes `let`, so that a later cell may declare the same name either way.
  async loosen() {
    for (const at of await this.places(/\bconst\b/g, 0, "return;", "Illegal return statement")) {
      this.change(at, 5, "let  ");
    }
  }

  // V8 knows no importer here; ours resolves like a module in the workspace. `$mport` is as long as `import`.
  async importByCall() {
    for (const at of await this.places(IMPORT_CALL, 1, "\\u0069", "must not contain escaped characters")) {
      this.change(at, 6, "$mport");
    }
  }

  // A cell is no module: `import a, { b as c } from "d"` becomes `let {default:a,b:c}=await $mport("d")`.
  async importByStatement() {
    for (let n = 0; n < MAX_TRIALS; n++) {
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
    const work = FUNCTION.exec(this.source.slice(at));
    if (work) return this.moveFunction(name, at + work[0].length);
    return this.source.startsWith("class", at) ? this.assignClass(name, at) : this.changeKind(name, at);
  }

  // A function is there before the first line runs, and so is its name.
  moveFunction(name, at) {
    const other = `${name}$${cells}`;
    this.change(at, name.length, other);
    this.moved += `${name}=$named(${other},"${name}");void 0;`;
    return true;
  }

  // A class where an earlier cell has `var` or a function. It ends with the first brace that makes it whole.
  async assignClass(name, at) {
    for (const { index } of [...this.source.slice(at).matchAll(/\}/g)].slice(0, MAX_TRIALS)) {
      const work = this.source.slice(at, at + index + 1);
      if ((await complaint(`throw 0;{${work}}`)).sentence !== "0") continue;
      this.change(at, work.length, `var ${name}=${work};`);
      return true;
    }
    return false;
  }

  // `var` where an earlier cell has `let`, or the other way round.
  async changeKind(name, at) {
    const before = this.source;
    const kinds = [...before.slice(0, at).matchAll(/\b(?:let|var)\b/g)].reverse().slice(0, MAX_REPAIRS);
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
      current = this;
      const answer = await evaluate(`${this.prefix}${this.source}\n//# sourceURL=${this.name}`);
      const name = this.hasBegun || n >= MAX_REPAIRS ? null : conflict(answer);
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
  const word = "[\\p{ID_Start}$_][\\p{ID_Continue}$\\u200c\\u200d]*";
  const quoted = `"[^"\\n]*"|'[^'\\n]*'`;
  const clause = `(?:(?<own>${word})${GAP},?${GAP})?(?:\\*${GAP}as${GAP}(?<all>${word})|(?<some>\\{[^{}]*\\}))?`;
  const attributes = `(?:${GAP}(?:with|assert)${GAP}(?<with>\\{[^{}]*\\}))?`;
  const form = new RegExp(`^import${GAP}(?:${clause}${GAP}\\bfrom\\b${GAP})?(?<from>${quoted})${attributes}`, "u");
  const found = form.exec(text);
  if (found === null) return null;
  const { own, all, some, from } = found.groups;
  const options = found.groups.with ? `,{with:${found.groups.with}}` : "";
  const wanted = `await $mport(${from}${options})`;
  const names = some && some.replaceAll(new RegExp(`\\bas\\b(?=${GAP}${word})`, "gu"), ":");
  const parts = [];
  if (all) parts.push(`${all}=${wanted}`);
  if (own) parts.push(all ? `{default:${own}}=${all}` : `{default:${own}}=${wanted}`);
  if (names) parts.push(`${names}=${wanted}`);
  const lines = found[0].split("\n").length - (names ?? "").split("\n").length;
  const said = parts.length ? `let ${parts.join(",")}` : `void ${wanted}`;
  return { length: found[0].length, text: `${said};${"\n".repeat(Math.max(0, lines))}` };
}

// What the changed texts call: hidden, permanent global names.
export async function connect() {
  session.connect();
  const named = (work, name) => Object.defineProperty(work, "name", { value: name });
  const begin = () => void (current.hasBegun = true);
  for (const [name, value] of [["$begin", begin], ["$named", named], ["$mport", await importer()]]) {
    Object.defineProperty(globalThis, name, { value });
  }
}

// The importer resolves from the workspace. Node calls it experimental, once, which cells need not see.
async function importer() {
  const importModuleDynamically = vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER;
  const script = new vm.Script("(from, options) => import(from, options)", {
    filename: `${process.cwd()}/cell.js`,
    importModuleDynamically,
  });
  const found = script.runInThisContext();
  const { emitWarning } = process;
  process.emitWarning = () => {};
  await found("node:fs");
  process.emitWarning = emitWarning;
  return found;
}
