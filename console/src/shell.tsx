import {
  ActionIcon,
  AppShell,
  Burger,
  Kbd,
  Menu,
  Text,
  Tooltip,
  UnstyledButton,
  useComputedColorScheme,
  useMantineColorScheme,
} from '@mantine/core';
import { useDisclosure } from '@mantine/hooks';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconLanguage, IconLogout, IconMoon, IconSearch, IconSun, IconUserCircle } from '@tabler/icons-react';
import type { ReactNode } from 'react';
import { Link, useLocation } from 'wouter';
import { logOut, useCaller, useSession } from './api/session';
import { CommandPalette, openPalette } from './command-palette';
import { languages, switchLanguage, type Language } from './i18n';
import { navigationFor } from './navigation';
import { NodeState } from './node-state';

const navbarWidth = 212;

/** The frame of every page: navigation, search, state of the node, account. */
export function Shell({ children }: { children: ReactNode }) {
  const { t, i18n } = useLingui();
  const caller = useCaller();
  const session = useSession();
  const [location] = useLocation();
  const [isOpen, { toggle, close }] = useDisclosure(false);
  const isCurrent = (path: string) => (path === '/' ? location === '/' : location.startsWith(path));
  return (
    <AppShell
      header={{ height: 48 }}
      navbar={{ width: navbarWidth, breakpoint: 'sm', collapsed: { mobile: !isOpen } }}
      padding="md"
    >
      <AppShell.Header className="shell-header row" px="sm">
        <Burger opened={isOpen} onClick={toggle} hiddenFrom="sm" size="sm" aria-label={t`Menu`} />
        <Link href="/" className="row brand" aria-label="Tidegate">
          <img src="/favicon.svg" width={22} height={22} alt="" />
          <Text fw={650} visibleFrom="sm">
            Tidegate
          </Text>
        </Link>
        <div className="row grow centered">
          <UnstyledButton className="search-button" onClick={openPalette}>
            <IconSearch size={15} aria-hidden />
            <Trans>Search</Trans>
            <Kbd size="xs" visibleFrom="sm">
              Ctrl K
            </Kbd>
          </UnstyledButton>
        </div>
        <NodeState />
        <ThemeSwitch />
        <Menu>
          <Menu.Target>
            <Tooltip label={t`Language`}>
              <ActionIcon aria-label={t`Language`} visibleFrom="sm">
                <IconLanguage size={18} />
              </ActionIcon>
            </Tooltip>
          </Menu.Target>
          <Menu.Dropdown>
            {Object.entries(languages).map(([language, name]) => (
              <Menu.Item key={language} lang={language} onClick={() => void switchLanguage(language as Language)}>
                {name}
              </Menu.Item>
            ))}
          </Menu.Dropdown>
        </Menu>
        <Menu>
          <Menu.Target>
            <ActionIcon aria-label={t`Account`}>
              <IconUserCircle size={20} />
            </ActionIcon>
          </Menu.Target>
          <Menu.Dropdown>
            <Menu.Label>{caller.name}</Menu.Label>
            <Menu.Item component={Link} href="/profile" leftSection={<IconUserCircle size={14} />}>
              <Trans>Account</Trans>
            </Menu.Item>
            {caller.authentication === 'token' && (
              <Menu.Item leftSection={<IconLogout size={14} />} onClick={() => void logOut()}>
                <Trans>Log out</Trans>
              </Menu.Item>
            )}
          </Menu.Dropdown>
        </Menu>
      </AppShell.Header>
      <AppShell.Navbar className="shell-navbar" p="xs" aria-label={t`Main`}>
        {navigationFor(caller).map((group, index) => (
          <div key={index}>
            {group.label && <div className="nav-group">{i18n._(group.label)}</div>}
            {group.entries.map(({ path, label, icon: Icon }) => (
              <Link
                key={path}
                href={path}
                className="nav-link"
                aria-current={isCurrent(path) ? 'page' : undefined}
                onClick={close}
              >
                <Icon size={17} stroke={1.7} aria-hidden />
                {i18n._(label)}
              </Link>
            ))}
          </div>
        ))}
      </AppShell.Navbar>
      <AppShell.Main>{children}</AppShell.Main>
      {session.state === 'ready' && <CommandPalette />}
    </AppShell>
  );
}

function ThemeSwitch() {
  const { t } = useLingui();
  const { setColorScheme } = useMantineColorScheme();
  const isDark = useComputedColorScheme('light') === 'dark';
  const label = isDark ? t`Light theme` : t`Dark theme`;
  return (
    <Tooltip label={label}>
      <ActionIcon aria-label={label} onClick={() => setColorScheme(isDark ? 'light' : 'dark')}>
        {isDark ? <IconSun size={18} /> : <IconMoon size={18} />}
      </ActionIcon>
    </Tooltip>
  );
}
