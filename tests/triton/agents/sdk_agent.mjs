// An agent of the Agents SDK with three tools, which does one task by the Responses API and says how it ended.
import { execSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";

import { Agent, run, setTracingDisabled, tool } from "@openai/agents";
import { z } from "zod";

setTracingDisabled(true);

const agent = new Agent({
  name: "Coder",
  instructions: "You change files by your tools.",
  model: process.env.OPENAI_MODEL,
  tools: [
    tool({
      name: "read_file",
      description: "Read a file.",
      parameters: z.object({ path: z.string() }),
      execute: ({ path }) => readFileSync(path, "utf-8"),
    }),
    tool({
      name: "replace",
      description: "Replace a text in a file by another.",
      parameters: z.object({ path: z.string(), old: z.string(), new: z.string() }),
      execute: (edit) => {
        writeFileSync(edit.path, readFileSync(edit.path, "utf-8").replace(edit.old, edit.new));
        return "replaced";
      },
    }),
    tool({
      name: "run",
      description: "Run a command.",
      parameters: z.object({ command: z.string() }),
      execute: ({ command }) => execSync(command, { encoding: "utf-8" }),
    }),
  ],
});

const result = await run(agent, process.argv[2], { stream: true });
await result.completed;
console.log(result.finalOutput);
