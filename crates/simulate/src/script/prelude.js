// What scripts may use, besides the language itself. The host calls `call`, and reads nothing else.
(function (random, hash, maxActions) {
  'use strict';
  const attributes = new Map();
  const { parse, stringify } = JSON;
  let actions = [];
  let clock = 0;

  function act(kind, fields) {
    if (actions.length >= maxActions) throw new RangeError(`a hook may ask for at most ${maxActions} actions`);
    actions.push({ [kind]: fields });
  }
  function text(value) {
    return typeof value === 'string' ? value : (stringify(value) ?? '');
  }
  Math.random = random;
  // Nothing runs after a hook.
  delete globalThis.queueMicrotask;

  class Device {
    #number;
    #state;
    constructor(device) {
      this.#number = device.number;
      this.#state = device.state;
      this.id = device.id;
      this.index = device.index;
      this.fleet = device.fleet;
      this.messages = device.messages;
    }
    getId() {
      return this.id;
    }
    get state() {
      return parse(this.#state);
    }
    get(name) {
      return attributes.get(this.#number)?.get(String(name));
    }
    set(name, value) {
      let own = attributes.get(this.#number);
      if (!own) attributes.set(this.#number, (own = new Map()));
      own.set(String(name), value);
      return this;
    }
    publish(topic, payload, qos = 0, retain = false) {
      act('publish', { topic: String(topic), payload: text(payload), qos: Number(qos), retain: Boolean(retain) });
    }
    subscribe(filter, qos = 0) {
      act('subscribe', { filter: String(filter), qos: Number(qos) });
    }
    disconnect() {
      act('disconnect', {});
    }
  }

  globalThis.log = (...values) => act('log', { text: values.map(text).join(' ') });
  globalThis.now = () => clock;
  globalThis.md5 = (value) => hash(text(value));
  globalThis.randomFloat = (from, to) => from + (to - from) * random();
  globalThis.randomInt = (from, to) => Math.floor(from + (to - from + 1) * random());
  globalThis.toJson = (value) => stringify(value);
  globalThis.parseJson = (value) => parse(value);

  // Calls a hook; the result is JSON.
  return function call(hook, device, argument) {
    actions = [];
    const value = argument === undefined ? undefined : parse(argument);
    const own = parse(device);
    clock = own.now;
    const result = globalThis[hook](new Device(own), value);
    const changed = result !== null && typeof result === 'object' ? { ...value, ...result } : value;
    if (changed && 'payload' in changed) changed.payload = text(changed.payload);
    return stringify({ value: result === false ? null : (changed ?? null), actions });
  };
});
