import { msg } from '@lingui/core/macro';
import type { MessageDescriptor } from '@lingui/core';
import {
  IconActivity,
  IconChartLine,
  IconBellRinging,
  IconDevices2,
  IconFilterCode,
  IconHome2,
  IconFiles,
  IconHistory,
  IconKey,
  IconLayoutDashboard,
  IconListCheck,
  IconPlugConnected,
  IconSitemap,
  IconDatabaseExport,
  IconCpu,
  IconPackage,
  IconSettings,
  IconStack2,
  IconTestPipe,
  IconTopologyRing3,
  IconTopologyStarRing,
  IconUsers,
  type Icon,
} from '@tabler/icons-react';
import type { Caller } from './api/session';

export interface NavigationEntry {
  path: string;
  label: MessageDescriptor;
  icon: Icon;
  /** Whether only callers with a node-wide role see it. */
  nodeOnly?: boolean;
}

export interface NavigationGroup {
  label?: MessageDescriptor;
  entries: NavigationEntry[];
}

const groups: NavigationGroup[] = [
  { entries: [{ path: '/', label: msg`Home`, icon: IconHome2, nodeOnly: true }] },
  {
    label: msg`Messaging`,
    entries: [
      { path: '/clients', label: msg`Clients`, icon: IconPlugConnected, nodeOnly: true },
      { path: '/live', label: msg`Live`, icon: IconActivity, nodeOnly: true },
    ],
  },
  {
    label: msg`Data`,
    entries: [
      { path: '/rules', label: msg`Rules`, icon: IconFilterCode, nodeOnly: true },
      { path: '/chains', label: msg`Rule chains`, icon: IconSitemap, nodeOnly: true },
      { path: '/connectors', label: msg`Connectors`, icon: IconDatabaseExport, nodeOnly: true },
    ],
  },
  {
    label: msg`Devices`,
    entries: [
      { path: '/devices', label: msg`Devices`, icon: IconDevices2 },
      { path: '/dashboards', label: msg`Dashboards`, icon: IconLayoutDashboard },
      { path: '/telemetry', label: msg`Telemetry`, icon: IconChartLine },
      { path: '/products', label: msg`Products`, icon: IconPackage },
      { path: '/groups', label: msg`Groups`, icon: IconStack2 },
      { path: '/alarms', label: msg`Alarms`, icon: IconBellRinging },
      { path: '/firmware', label: msg`Firmware`, icon: IconCpu },
      { path: '/files', label: msg`Files`, icon: IconFiles },
    ],
  },
  { label: msg`Relay`, entries: [{ path: '/relay', label: msg`Endpoints`, icon: IconTopologyStarRing }] },
  {
    label: msg`Access`,
    entries: [
      { path: '/access/mqtt', label: msg`MQTT access`, icon: IconKey, nodeOnly: true },
      { path: '/access/people', label: msg`People`, icon: IconUsers },
      { path: '/access/audit', label: msg`Audit log`, icon: IconHistory, nodeOnly: true },
    ],
  },
  {
    label: msg`Node`,
    entries: [
      { path: '/cluster', label: msg`Cluster`, icon: IconTopologyRing3, nodeOnly: true },
      { path: '/simulations', label: msg`Simulations`, icon: IconTestPipe, nodeOnly: true },
      { path: '/jobs', label: msg`Jobs`, icon: IconListCheck },
      { path: '/settings', label: msg`Settings`, icon: IconSettings, nodeOnly: true },
    ],
  },
];

/** Whether a page shows the node, which callers without a node-wide role cannot see. */
export function isNodeOnly(location: string): boolean {
  return groups
    .flatMap(({ entries }) => entries)
    .some(({ path, nodeOnly }) => nodeOnly && (location === path || (path !== '/' && location.startsWith(`${path}/`))));
}

/** The pages that the caller can use. */
export function navigationFor(caller: Caller): NavigationGroup[] {
  return groups
    .map((group) => ({ ...group, entries: group.entries.filter((entry) => !entry.nodeOnly || caller.role !== null) }))
    .filter((group) => group.entries.length > 0);
}
