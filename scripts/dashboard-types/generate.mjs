// generate.mjs DIR: prints TypeScript that assigns every dashboard in DIR to the types of types.ts.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

const dir = process.argv[2];
console.log("import type { Board } from './types';");
for (const file of readdirSync(dir).filter((name) => name.endsWith('.json')).sort()) {
  const name = file.replace('.json', '').replaceAll('-', '_');
  console.log(`export const ${name}: Board = ${readFileSync(join(dir, file), 'utf8')};`);
}
