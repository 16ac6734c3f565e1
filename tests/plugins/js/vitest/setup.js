// Once, before the files of tests, which have processes of their own.
import envtest from 'kaji/envtest';
import { setUp } from '../api.js';

export default async function setup({ provide }) {
  const control = await envtest.start({ controllers: ['namespace-controller', 'garbage-collector-controller'] });
  await setUp(control.base);
  provide('kaji', control.announced);
  return () => control.stop();
}
