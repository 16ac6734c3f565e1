// An operator with @dot-i/k8s-operator: a Greeting gets a config map with its text, and says so.
'use strict';
const { default: Operator, ResourceEventType } = require('@dot-i/k8s-operator');

const FINALIZER = 'greetings.example.com/k8s-operator';

class Greetings extends Operator {
  async init() {
    await this.watchResource('greetings.example.com', 'v1', 'greetings', (event) => this.reconcile(event));
  }

  async reconcile(event) {
    const { name, namespace } = event.meta;
    const forget = () => this.k8sApi.deleteNamespacedConfigMap(name, namespace);
    if (await this.handleResourceFinalizer(event, FINALIZER, forget)) return;
    if (event.type === ResourceEventType.Deleted) return;
    const { text } = event.object.spec;
    await this.again(() => this.say(name, namespace, text));
    if (event.object.status?.said !== text) await this.patchResourceStatus(event.meta, { said: text });
  }

  async say(name, namespace, text) {
    const map = { metadata: { name }, data: { text } };
    try {
      await this.k8sApi.createNamespacedConfigMap(namespace, map);
    } catch (error) {
      if (error.statusCode !== 409) throw error;
      await this.k8sApi.replaceNamespacedConfigMap(name, namespace, map);
    }
  }

  // The framework gives an event up after an error.
  async again(write, attempts = 20) {
    for (let attempt = 1; ; attempt += 1) {
      try {
        await write();
        return;
      } catch (error) {
        if (attempt === attempts) throw error;
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
    }
  }
}

const operator = new Greetings({ debug() {}, info() {}, warn: console.error, error: console.error });
process.on('SIGTERM', () => {
  operator.stop();
  process.exit(0);
});
operator.start();
