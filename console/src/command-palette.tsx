import { Spotlight, spotlight } from '@mantine/spotlight';
import { useDebouncedValue } from '@mantine/hooks';
import { useLingui } from '@lingui/react/macro';
import { IconDevices2, IconPlugConnected, IconSearch } from '@tabler/icons-react';
import { useState } from 'react';
import { useLocation } from 'wouter';
import { api, unwrap, useRead } from './api/client';
import { useCaller } from './api/session';
import { navigationFor } from './navigation';

export const openPalette = () => spotlight.open();

const maxFound = 6;

/** Ctrl-K: pages, and clients and devices by a part of their name. */
export function CommandPalette() {
  const { t, i18n } = useLingui();
  const caller = useCaller();
  const [, navigate] = useLocation();
  const [query, setQuery] = useState('');
  const [wanted] = useDebouncedValue(query.trim(), 150);
  const isSearching = wanted.length >= 2;
  const clients = useRead(
    ['palette', 'clients', wanted],
    (signal) =>
      unwrap(
        api.GET('/api/v1/sessions', { params: { query: { client_id_contains: wanted, limit: maxFound } }, signal }),
      ),
    { enabled: isSearching && caller.role !== null, keep: true },
  );
  const devices = useRead(
    ['palette', 'devices', wanted],
    (signal) => unwrap(api.GET('/api/v1/devices', { params: { query: { text: wanted, limit: maxFound } }, signal })),
    { enabled: isSearching, keep: true },
  );
  const pages = navigationFor(caller)
    .flatMap((group) => group.entries)
    .map(({ path, label, icon: Icon }) => ({
      id: path,
      label: i18n._(label),
      leftSection: <Icon size={18} stroke={1.7} />,
      onClick: () => navigate(path),
    }))
    .filter((entry) => entry.label.toLowerCase().includes(query.trim().toLowerCase()));
  const found = isSearching
    ? [
        {
          group: t`Clients`,
          actions: (clients.data?.data ?? []).map((client) => ({
            id: `client ${client.client_id}`,
            label: client.client_id,
            description: client.connected ? t`connected` : t`not connected`,
            leftSection: <IconPlugConnected size={18} stroke={1.7} />,
            onClick: () => navigate(`/clients/${encodeURIComponent(client.client_id)}`),
          })),
        },
        {
          group: t`Devices`,
          actions: (devices.data?.data ?? []).map((device) => ({
            id: `device ${device.id}`,
            label: device.name || device.id,
            description: device.id,
            leftSection: <IconDevices2 size={18} stroke={1.7} />,
            onClick: () => navigate(`/devices/${encodeURIComponent(device.id)}`),
          })),
        },
      ].filter((group) => group.actions.length > 0)
    : [];
  return (
    <Spotlight
      actions={[{ group: t`Pages`, actions: pages }, ...found].filter((group) => group.actions.length > 0)}
      query={query}
      onQueryChange={setQuery}
      filter={(_, actions) => actions}
      shortcut={['mod + K', '/']}
      nothingFound={t`Nothing found`}
      highlightQuery
      scrollable
      maxHeight={420}
      searchProps={{
        leftSection: <IconSearch size={18} stroke={1.7} />,
        placeholder: t`Find a page, client or device`,
        'aria-label': t`Find a page, client or device`,
      }}
    />
  );
}
