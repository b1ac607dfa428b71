import { Tabs } from '@mantine/core';
import { Trans } from '@lingui/react/macro';
import type { ReactNode } from 'react';
import { Forbidden } from './states';
import { useUrlState } from './url-state';

export interface PageTab {
  /** In the query of the page's address. */
  id: string;
  label: ReactNode;
  /** `false`: only the address leads to it. */
  isListed?: boolean;
  /** `false`: the caller's role does not permit it; it is not listed, and its address says so. */
  isPermitted?: boolean;
  content: ReactNode;
}

/** The parts of a page. The open one is part of the address; the first listed one is the default. */
export function PageTabs({ tabs }: { tabs: PageTab[] }) {
  const listed = tabs.filter(({ isListed, isPermitted }) => isListed !== false && isPermitted !== false);
  const initial = listed[0]?.id ?? '';
  const [wanted, setOpen] = useUrlState('tab', initial);
  const open = tabs.some(({ id }) => id === wanted) ? wanted : initial;
  return (
    <Tabs value={open} onChange={(value) => setOpen(value ?? initial)} keepMounted={false}>
      <Tabs.List>
        {listed.map(({ id, label }) => (
          <Tabs.Tab key={id} value={id}>
            {label}
          </Tabs.Tab>
        ))}
      </Tabs.List>
      {tabs.map(({ id, isPermitted, content }) => (
        <Tabs.Panel key={id} value={id} pt="md">
          {isPermitted === false ? (
            <Forbidden>
              <Trans>Your role does not permit this part of the page.</Trans>
            </Forbidden>
          ) : (
            content
          )}
        </Tabs.Panel>
      ))}
    </Tabs>
  );
}
