// Once, before the files of tests: what they have of it is the environment.
import envtest from 'kaji/envtest';
import { setUp } from '../api.js';

export default async function setup() {
  const control = await envtest.start({ controllers: ['namespace-controller'] });
  globalThis.kaji = control;
  await setUp(control.base);
  process.env.KAJI_CONTROL = JSON.stringify(control.announced);
}
