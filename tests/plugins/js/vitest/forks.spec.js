import { describe, expect, inject, test } from 'vitest';
import envtest from 'kaji/envtest';
import { core, create, exists } from '../api.js';

const control = envtest.connect(inject('kaji'));

describe.concurrent('forks', () => {
  test.each(Array.from({ length: 20 }, (_, number) => number))('a cluster of its own, %i', () =>
    control.withFork(async (cluster) => {
      const api = core(cluster.kubeconfig);
      expect(await exists(api, 'shared')).toBe(true);
      expect(await exists(api, 'own')).toBe(false);
      await create(api, 'own');
    }),
  );
});

test('time is moved', () =>
  control.withFork(async (cluster) => {
    expect((await cluster.advance(3600)).aheadSeconds).toBe(3600);
  }));
