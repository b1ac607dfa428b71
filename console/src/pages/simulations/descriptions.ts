/**
 * Descriptions of the ready-made simulations, for translation.
 *
 * The node describes its simulations in English; the test compares those texts with these.
 */

import type { I18n, MessageDescriptor } from '@lingui/core';
import { msg } from '@lingui/core/macro';

export const descriptions: Record<string, MessageDescriptor> = {
  demo: msg`A site with 50 pumps, rooms and meters with alarms, rules, a dashboard and the values of the last day`,
  'firmware-campaign': msg`A campaign that installs firmware on 10,000 ThingsBoard devices in three waves; 3 % fail, and some lose their connection`,
  gateway: msg`A ThingsBoard gateway with 100 sensors that report every 10 seconds and answer commands`,
  'industrial-plc': msg`ThingsBoard devices: controllers of a factory that send 60 values each second`,
  'reconnect-storm': msg`All devices lose their connection at once and return: with back-off, then a region, then without back-off`,
  'relay-room': msg`A relay endpoint with 100 devices that report each second, receive the messages of all others, and answer commands`,
  'report-003': msg`JetLinks' report: 100,000 devices connect, 1,000 at a time, then 10,000 and 20,000 random devices send an event each second`,
  'smart-home': msg`Rooms of a home: temperatures at intervals, doors and lights on change, switches that answer`,
  'smart-meter': msg`ThingsBoard devices: water meters that send pulses, leakage and battery level`,
  'smart-tracker': msg`ThingsBoard devices: trackers on a road that send position, speed, fuel and battery level`,
  vehicles: msg`Vehicles on random routes through Zurich that report position, speed and fuel`,
  weather: msg`Weather stations: slow waves over the day with noise, rain now and then`,
};

/** The description of a simulation in the language of the console, or as the node gives it. */
export function describe(i18n: I18n, { name, description }: { name: string; description: string }): string {
  const translated = descriptions[name];
  return i18n.locale === 'en' || translated === undefined ? description : i18n._(translated);
}
