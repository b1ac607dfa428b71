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
  /** Whether the content keeps its state, such as unsaved text, while another tab is open. */
  isKept?: boolean;
  content: ReactNode;
}

/** The parts of a page. The open one is part of the address; the first listed one is the default. */
export function PageTabs({ tabs }: { tabs: PageTab[] }) {
  const listed = tabs.filter(({ isListed, isPermitted }) => isListed !== false && isPermitted !== false);
  const initial = listed[0]?.id ?? '';
  const [wanted, setOpen] = useUrlState('tab', initial);
  const open = tabs.some(({ id }) => id === wanted) ? wanted : initial;
  return (
    // Kept panels stay as they are: the other mode runs the clean-up of their effects, as if they were closed.
    <Tabs
      value={open}
      onChange={(value) => setOpen(value ?? initial)}
      keepMounted={false}
      keepMountedMode="display-none"
    >
      <Tabs.List>
        {listed.map(({ id, label }) => (
          <Tabs.Tab key={id} value={id}>
            {label}
          </Tabs.Tab>
        ))}
      </Tabs.List>
      {tabs.map(({ id, isPermitted, isKept = false, content }) => (
        <Tabs.Panel key={id} value={id} pt="md" keepMounted={isKept}>
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
